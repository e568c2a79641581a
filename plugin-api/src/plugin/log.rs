//! Sends `tracing` events of this library to the host.
//!
//! A shared library has its own copy of every static, so the host's subscriber hears nothing of
//! what happens here. `init` installs a subscriber that hands each event, with the fields of the
//! spans around it, to the host's log.

use std::fmt::Write as _;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

use super::Host;
use crate::abi::{
    TF_LOG_DEBUG, TF_LOG_ERROR, TF_LOG_INFO, TF_LOG_OFF, TF_LOG_TRACE, TF_LOG_WARN, TfKeyValue, TfLogRecord,
    TfStr,
};

static LEVEL: AtomicU32 = AtomicU32::new(TF_LOG_OFF);

/// Sets the level filter.
pub(super) fn set_level(level: u32) {
    LEVEL.store(level, Ordering::Relaxed);
}

/// Installs the subscriber once in the life of the library.
pub(super) fn install(host: Host) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let subscriber = tracing_subscriber::registry().with(Forward { host });
        // A plugin that brings a subscriber of its own keeps it.
        let _ = tracing::subscriber::set_global_default(subscriber);
    });
}

struct Forward {
    host: Host,
}

fn code(level: &Level) -> u32 {
    match *level {
        Level::ERROR => TF_LOG_ERROR,
        Level::WARN => TF_LOG_WARN,
        Level::INFO => TF_LOG_INFO,
        Level::DEBUG => TF_LOG_DEBUG,
        Level::TRACE => TF_LOG_TRACE,
    }
}

/// The fields of a span, kept until it closes.
struct SpanFields(Vec<(String, String)>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Forward {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let level = code(metadata.level());
        level <= LEVEL.load(Ordering::Relaxed)
            && (metadata.is_span() || self.host.log_enabled(level, metadata.target()))
    }

    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        id: &tracing::span::Id,
        context: Context<'_, S>,
    ) {
        if let Some(span) = context.span(id) {
            let mut fields = Collect::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(SpanFields(fields.pairs));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Collect::default();
        event.record(&mut fields);
        if let Some(scope) = context.event_scope(event) {
            for span in scope {
                if let Some(SpanFields(pairs)) = span.extensions().get::<SpanFields>() {
                    let name = span.name();
                    fields
                        .pairs
                        .extend(pairs.iter().map(|(key, value)| (format!("{name}.{key}"), value.clone())));
                }
            }
        }
        let pairs: Vec<TfKeyValue> = fields
            .pairs
            .iter()
            .map(|(key, value)| TfKeyValue { key: TfStr::new(key), value: TfStr::new(value) })
            .collect();
        let metadata = event.metadata();
        self.host.log(&TfLogRecord {
            struct_size: size_of::<TfLogRecord>() as u32,
            level: code(metadata.level()),
            target: TfStr::new(metadata.target()),
            message: TfStr::new(&fields.message),
            file: metadata.file().map_or(TfStr::EMPTY, TfStr::new),
            line: metadata.line().unwrap_or(0),
            field_count: pairs.len() as u32,
            fields: pairs.as_ptr(),
        });
    }
}

#[derive(Default)]
struct Collect {
    message: String,
    pairs: Vec<(String, String)>,
}

impl Visit for Collect {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            // Writing to a String cannot fail.
            let _ = write!(self.message, "{value:?}");
        } else {
            self.pairs.push((field.name().to_owned(), format!("{value:?}")));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            self.pairs.push((field.name().to_owned(), value.to_owned()));
        }
    }
}
