//! The log of request bodies that `TENSORFOLD_REQUEST_LOG` asks for.
//!
//! It holds prompts, so it is off unless asked for, and only its owner can read it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

/// A file with one JSON object a line.
pub(super) struct RequestLog {
    file: Mutex<File>,
}

impl RequestLog {
    /// Opens the file for appending; a new one is its owner's alone.
    pub(super) fn open(path: &Path) -> std::io::Result<RequestLog> {
        // A pipe that nobody reads is an error rather than a wait.
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        Ok(RequestLog { file: Mutex::new(file) })
    }

    /// Appends one request. A log that cannot be written stops no request.
    pub(super) fn write(&self, id: &str, route: &str, body: &Map<String, Value>) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let mut line = json!({ "time": time, "id": id, "route": route, "body": body }).to_string();
        line.push('\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.write_all(line.as_bytes()) {
            tracing::warn!(%error, "the request log cannot be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn bodies_are_appended_one_a_line_to_a_file_of_the_owners() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("requests.jsonl");
        for id in ["cmpl-1", "cmpl-2"] {
            let body = json!({"prompt": "a\nb"});
            RequestLog::open(&path).unwrap().write(id, "/v1/completions", body.as_object().unwrap());
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1]["id"], "cmpl-2");
        assert_eq!(lines[1]["body"]["prompt"], "a\nb");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(RequestLog::open(folder.path()).is_err());
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: `name` is a C string that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(RequestLog::open(&path).is_err());
    }
}
