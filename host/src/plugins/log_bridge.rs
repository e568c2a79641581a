//! Log records of plugins, as `tracing` events of the host.
//!
//! The target becomes `plugin.<id>.<target>`. A call site that floods is held back: after [`BURST`] records within
//! [`WINDOW`] the rest is counted, and one line says how often it was repeated. Callable from any thread; keeps
//! bounded memory whatever a plugin sends.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tensorfold_plugin_api::abi::{TF_LOG_DEBUG, TF_LOG_ERROR, TF_LOG_INFO, TF_LOG_WARN, TF_MEMORY_DEVICE};
use tensorfold_plugin_api::host::{HostServices, LogRecord};
use tracing::callsite::{Callsite, Identifier};
use tracing::field::FieldSet;
use tracing::metadata::Kind;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata};

/// Records of one call site that pass within one window.
pub const BURST: u32 = 20;
/// Length of a window.
pub const WINDOW: Duration = Duration::from_secs(10);
/// Call sites that are told apart; more share one entry.
const SITES_MAX: usize = 1024;
/// Targets that are told apart; more are logged under the plugin's own.
const TARGETS_MAX: usize = 256;
/// Longest message, in bytes; the rest is cut off.
const MESSAGE_MAX: usize = 16 << 10;

/// Memory that a plugin says it holds, in bytes.
#[derive(Debug, Default)]
pub struct MemoryReport {
    device: AtomicU64,
    host: AtomicU64,
}

impl MemoryReport {
    /// On its devices.
    pub fn device_bytes(&self) -> u64 {
        self.device.load(Ordering::Relaxed)
    }

    /// In the machine's memory.
    pub fn host_bytes(&self) -> u64 {
        self.host.load(Ordering::Relaxed)
    }
}

/// What the host does for one plugin: takes its records and its memory reports.
pub struct LogBridge {
    id: String,
    limiter: Mutex<Limiter>,
    memory: Arc<MemoryReport>,
}

impl LogBridge {
    /// A bridge for the plugin of this id.
    pub fn new(id: &str) -> Self {
        Self { id: id.to_owned(), limiter: Mutex::default(), memory: Arc::default() }
    }

    /// The plugin's memory reports, also while the bridge is with the plugin.
    pub fn memory(&self) -> Arc<MemoryReport> {
        self.memory.clone()
    }

    fn target(&self, target: &str) -> String {
        if target.is_empty() { format!("plugin.{}", self.id) } else { format!("plugin.{}.{target}", self.id) }
    }

    fn emit(&self, level: Level, record: &LogRecord, message: &str) {
        let site = site_for(level, &self.target(&record.target), &self.id);
        let fields =
            record.fields.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ");
        tracing::dispatcher::get_default(|dispatch| {
            let metadata = site.metadata();
            if !dispatch.enabled(metadata) {
                return;
            }
            let mut names = metadata.fields().iter();
            let (Some(message_field), Some(fields_field)) = (names.next(), names.next()) else { return };
            let message = format_args!("{message}");
            let shown: Option<&dyn tracing::Value> = if fields.is_empty() { None } else { Some(&fields) };
            let values = [(&message_field, Some(&message as &dyn tracing::Value)), (&fields_field, shown)];
            dispatch.event(&Event::new(metadata, &metadata.fields().value_set(&values)));
        });
    }
}

impl HostServices for LogBridge {
    fn log_enabled(&self, level: u32, target: &str) -> bool {
        let site = site_for(level_of(level), &self.target(target), &self.id);
        tracing::dispatcher::get_default(|dispatch| dispatch.enabled(site.metadata()))
    }

    fn log(&self, record: LogRecord) {
        let level = level_of(record.level);
        let verdict = {
            let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
            limiter.judge(site_of(&record), Instant::now())
        };
        if let Verdict::PassAfter(repeated) = verdict {
            self.emit(level, &record, &format!("repeated {repeated} times: {}", cut(&record.message)));
        }
        if verdict != Verdict::Hold {
            self.emit(level, &record, cut(&record.message));
        }
    }

    fn memory_report(&self, kind: u32, bytes: u64) {
        let counter = if kind == TF_MEMORY_DEVICE { &self.memory.device } else { &self.memory.host };
        counter.store(bytes, Ordering::Relaxed);
    }
}

fn cut(message: &str) -> &str {
    let mut end = message.len().min(MESSAGE_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

fn level_of(level: u32) -> Level {
    match level {
        TF_LOG_ERROR => Level::ERROR,
        TF_LOG_WARN => Level::WARN,
        TF_LOG_INFO => Level::INFO,
        TF_LOG_DEBUG => Level::DEBUG,
        0 | 6.. => Level::ERROR,
        _ => Level::TRACE,
    }
}

/// The call site: file and line, or the message where the plugin does not say.
fn site_of(record: &LogRecord) -> u64 {
    let mut hasher = DefaultHasher::new();
    (record.level, &record.target, &record.file, record.line).hash(&mut hasher);
    if record.file.is_empty() {
        record.message.hash(&mut hasher);
    }
    hasher.finish()
}

#[derive(Debug, Default)]
struct Limiter {
    sites: HashMap<u64, Window>,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    passed: u32,
    held: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Pass,
    /// Pass, and say first how many were held back.
    PassAfter(u64),
    Hold,
}

impl Limiter {
    fn judge(&mut self, site: u64, now: Instant) -> Verdict {
        if !self.sites.contains_key(&site) && self.sites.len() >= SITES_MAX {
            self.sites.retain(|_, window| now.duration_since(window.began) < WINDOW || window.held > 0);
        }
        // A plugin that invents call sites without end shares one window among the rest.
        let site = if self.sites.contains_key(&site) || self.sites.len() < SITES_MAX { site } else { 0 };
        let window = self.sites.entry(site).or_insert(Window { began: now, passed: 0, held: 0 });
        if now.duration_since(window.began) >= WINDOW {
            let held = std::mem::take(&mut window.held);
            window.began = now;
            window.passed = 1;
            return if held > 0 { Verdict::PassAfter(held) } else { Verdict::Pass };
        }
        if window.passed < BURST {
            window.passed += 1;
            return Verdict::Pass;
        }
        window.held += 1;
        Verdict::Hold
    }
}

/// A `tracing` call site that is made at run time, one for each level and target.
struct Site {
    metadata: OnceLock<Metadata<'static>>,
}

impl Callsite for Site {
    fn set_interest(&self, _: Interest) {
        // Asked anew for each record: plugins log rarely enough.
    }

    fn metadata(&self) -> &Metadata<'_> {
        self.metadata.get().expect("set before the site is handed out")
    }
}

/// The call site for a level and target. Sites live to the end of the process, so their number is bounded.
fn site_for(level: Level, target: &str, id: &str) -> &'static Site {
    static SITES: OnceLock<Mutex<HashMap<(Level, String), &'static Site>>> = OnceLock::new();
    let mut sites = SITES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(site) = sites.get(&(level, target.to_owned())) {
        return site;
    }
    let own = format!("plugin.{id}");
    let target = if sites.len() < TARGETS_MAX { target.to_owned() } else { own };
    if let Some(site) = sites.get(&(level, target.clone())) {
        return site;
    }
    let site: &'static Site = Box::leak(Box::new(Site { metadata: OnceLock::new() }));
    let name: &'static str = Box::leak(target.clone().into_boxed_str());
    let fields = FieldSet::new(&["message", "fields"], Identifier(site));
    site.metadata
        .get_or_init(|| Metadata::new("plugin record", name, level, None, None, None, fields, Kind::EVENT));
    tracing::callsite::register(site);
    sites.insert((level, target), site);
    site
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex as StdMutex;
    use tracing_subscriber::layer::SubscriberExt;

    fn record(message: &str, line: u32) -> LogRecord {
        LogRecord {
            level: TF_LOG_WARN,
            target: "driver".into(),
            message: message.into(),
            file: "driver.c".into(),
            line,
            fields: vec![("free".into(), "12".into())],
        }
    }

    #[derive(Clone, Default)]
    struct Written(Arc<StdMutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn with_filter(filter: &str, body: impl FnOnce()) -> String {
        let written = Written::default();
        let writer = written.clone();
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || writer.clone());
        let filter = tracing_subscriber::EnvFilter::new(filter);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer).with(filter), body);
        String::from_utf8(written.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_record_becomes_an_event_under_the_plugins_name() {
        let bridge = LogBridge::new("backend-a");
        let text = with_filter("info", || bridge.log(record("low memory", 1)));
        assert!(text.contains("WARN plugin.backend-a.driver: low memory"), "{text}");
        assert!(text.contains("free=12"), "{text}");
    }

    #[test]
    fn the_hosts_filter_decides_by_target_and_level() {
        let bridge = LogBridge::new("backend-b");
        let text = with_filter("info,plugin.backend-b.driver=error", || {
            assert!(!bridge.log_enabled(TF_LOG_WARN, "driver"));
            assert!(bridge.log_enabled(TF_LOG_WARN, "other"));
            assert!(bridge.log_enabled(99, "driver"), "an unknown level is taken as an error");
            bridge.log(record("hidden", 1));
        });
        assert!(text.is_empty(), "{text}");
    }

    #[test]
    fn a_flood_passes_in_part_and_the_rest_is_counted() {
        let mut limiter = Limiter::default();
        let start = Instant::now();
        let passed = (0..100).filter(|_| limiter.judge(7, start) == Verdict::Pass).count();
        assert_eq!(passed, BURST as usize);
        assert_eq!(limiter.judge(8, start), Verdict::Pass, "another call site is not held back");
        let later = start + WINDOW;
        assert_eq!(limiter.judge(7, later), Verdict::PassAfter(100 - u64::from(BURST)));
        assert_eq!(limiter.judge(7, later), Verdict::Pass);
    }

    #[test]
    fn invented_call_sites_do_not_fill_the_memory() {
        let mut limiter = Limiter::default();
        let start = Instant::now();
        for site in 0..100_000 {
            limiter.judge(site, start);
        }
        assert!(limiter.sites.len() <= SITES_MAX + 1);
    }

    #[test]
    fn without_a_file_the_message_tells_sites_apart() {
        let nameless = |message: &str| LogRecord { file: String::new(), line: 0, ..record(message, 0) };
        assert_ne!(site_of(&nameless("a")), site_of(&nameless("b")));
        assert_eq!(site_of(&record("a", 3)), site_of(&record("b", 3)));
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let long = "é".repeat(MESSAGE_MAX);
        assert!(cut(&long).len() <= MESSAGE_MAX);
        assert_eq!(cut("short"), "short");
    }

    #[test]
    fn memory_reports_are_kept_by_kind() {
        let bridge = LogBridge::new("backend-c");
        let memory = bridge.memory();
        bridge.memory_report(TF_MEMORY_DEVICE, 10);
        bridge.memory_report(tensorfold_plugin_api::abi::TF_MEMORY_HOST, 20);
        assert_eq!((memory.device_bytes(), memory.host_bytes()), (10, 20));
    }
}
