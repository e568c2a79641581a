//! A user of the Hub, and what a download tells it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tensorfold_hub::{Cache, Event, Hub, HubError, Limits, Settings, Watch};

use super::server::{Files, Server, files, noise};

/// Limits under which a test shows in a moment what takes the real world a while.
pub(crate) fn quick() -> Limits {
    Limits {
        stall: Duration::from_secs(20),
        least: 512,
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_secs(2),
        piece: 64 << 10,
        pieces: 4,
        ..Limits::default()
    }
}

pub(crate) fn open(server: &Server, cache: &Path, variables: &[(&str, &str)], limits: Limits) -> Hub {
    let variable = |name: &str| match name {
        "HF_ENDPOINT" => Some(server.address().into()),
        name => variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()),
    };
    let mut settings = Settings::from_variables(variable).unwrap();
    settings.limits = limits;
    let cache = Cache::from_variables(|name| (name == "HF_HUB_CACHE").then(|| cache.into()));
    Hub::new(&settings, cache).unwrap()
}

/// What a download told.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) lines: Vec<String>,
    pub(crate) arrived: u64,
}

impl Watch for Told {
    fn config(&mut self, snapshot: &Path) -> Result<(), String> {
        assert!(snapshot.join("config.json").is_file());
        self.lines.push("config".into());
        Ok(())
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Arrived { bytes } => self.arrived += bytes,
            Event::Cached { path } => self.lines.push(format!("cached {path}")),
            Event::Waiting { path } => self.lines.push(format!("waiting {path}")),
            Event::Begin { path, there, .. } => self.lines.push(format!("begin {path} at {there}")),
            Event::Done { path, .. } => self.lines.push(format!("done {path}")),
            Event::Weights { files, bytes } => self.lines.push(format!("weights {files} {bytes}")),
        }
    }
}

pub(crate) fn pull(hub: &Hub, reference: &str) -> Result<(PathBuf, Told), HubError> {
    let mut told = Told::default();
    let listing = hub.list(&reference.parse().unwrap())?;
    let folder = hub.download(&listing, &mut told)?;
    Ok((folder, told))
}

pub(crate) fn model() -> Files {
    files([
        ("config.json", b"{\"model_type\": \"llama\"}".to_vec()),
        ("README.md", b"---\nlicense: mit\n---\n".to_vec()),
        ("tokenizer.json", noise(30_000)),
        ("templates/more/chat.jinja", b"{{ x }}".to_vec()),
        ("model.safetensors", noise(1_000_000)),
        ("pytorch_model.bin", noise(50_000)),
        ("picture.png", noise(5_000)),
        (".gitattributes", b"*.bin filter=lfs".to_vec()),
    ])
}

/// Every file below a folder, links as what they lead to.
pub(crate) fn everything(folder: &Path) -> Files {
    let mut found = Files::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        match entry.path().is_dir() {
            true => found.extend(
                everything(&entry.path())
                    .into_iter()
                    .map(|(path, content)| (format!("{name}/{path}"), content)),
            ),
            false => drop(found.insert(name, fs::read(entry.path()).unwrap())),
        }
    }
    found
}
