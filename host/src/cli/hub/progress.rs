//! How a download goes: bars on a terminal, lines elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tensorfold_hub::{Event, Watch};

use crate::cli::complain;

const FILE_STYLE: &str = "  {msg} {bar:24} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
const TOTAL_STYLE: &str =
    "  all weights {bar:24} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";

/// Looks at a configuration; what it says against the rest ends the download.
pub(super) type Check<'a> = &'a mut dyn FnMut(&Path) -> Result<(), String>;

/// Shows a download.
pub(super) struct Progress<'a> {
    check: Check<'a>,
    lines_to_stdout: bool,
    bars: Option<MultiProgress>,
    file: Option<ProgressBar>,
    total: Option<ProgressBar>,
}

impl<'a> Progress<'a> {
    /// `lines_to_stdout` is for a command whose lines are its result.
    pub(super) fn new(check: Check<'a>, lines_to_stdout: bool) -> Progress<'a> {
        let on_a_terminal = std::io::stderr().is_terminal();
        let bars = on_a_terminal.then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        Progress { check, lines_to_stdout, bars, file: None, total: None }
    }

    /// Whether bars are drawn.
    pub(super) fn is_on_a_terminal(&self) -> bool {
        self.bars.is_some()
    }

    /// Takes the bars away and prints a line.
    pub(super) fn end(&mut self, line: &str) {
        self.clear_file();
        if let Some(total) = self.total.take() {
            total.finish_and_clear();
        }
        self.line(line);
    }

    fn line(&self, line: &str) {
        let print = || match self.lines_to_stdout {
            // A reader that has gone, as `head` does, is no reason to stop downloading.
            true => drop(writeln!(std::io::stdout(), "{line}")),
            false => complain(line),
        };
        match &self.bars {
            Some(bars) => bars.suspend(print),
            None => print(),
        }
    }

    fn clear_file(&mut self) {
        if let Some(file) = self.file.take() {
            file.finish_and_clear();
        }
    }

    fn bar(&self, length: u64, style: &str) -> Option<ProgressBar> {
        let bar = self.bars.as_ref()?.add(ProgressBar::new(length));
        // The templates are constants and a test reads them.
        bar.set_style(style_of(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Some(bar)
    }
}

impl Watch for Progress<'_> {
    fn config(&mut self, snapshot: &Path) -> Result<(), String> {
        (self.check)(snapshot)
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Weights { bytes, .. } => self.total = self.bar(bytes, TOTAL_STYLE),
            Event::Cached { path } => self.line(&format!("  {path}: cached")),
            Event::Waiting { path } => {
                self.line(&format!("  {path}: another process downloads it; waiting until it is done"));
            }
            Event::Begin { path, bytes, there } => {
                self.clear_file();
                self.file = self.bar(bytes, FILE_STYLE);
                if let Some(file) = &self.file {
                    file.set_message(path.to_string());
                    // The bytes that were there took no time.
                    file.set_position(there);
                    file.reset_eta();
                }
            }
            Event::Arrived { bytes } => {
                for bar in [&self.file, &self.total].into_iter().flatten() {
                    bar.inc(bytes);
                }
            }
            Event::Done { path, bytes } => {
                self.clear_file();
                self.line(&format!("  {path}: {:.2} MiB", bytes as f64 / f64::from(1 << 20)));
            }
        }
    }
}

fn style_of(template: &str) -> Result<ProgressStyle, indicatif::style::TemplateError> {
    Ok(ProgressStyle::with_template(template)?.progress_chars("=> "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_of_the_bars_are_read() {
        for template in [FILE_STYLE, TOTAL_STYLE] {
            assert!(style_of(template).is_ok(), "{template}");
        }
    }
}
