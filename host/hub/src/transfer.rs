//! The bytes of one remote file, in their order, however often the connection ends.
//!
//! A large file comes in pieces over several connections at once. Pieces that arrive early wait in memory, so what is
//! handed on is always the next part of the file: a partial download is a beginning, which any tool can go on with,
//! and its digest grows along with it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf as _, Bytes};
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE};
use reqwest::{Method, StatusCode};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use url::Url;

use crate::error::{HubError, brief};
use crate::http::{Answer, Client, Subject, header, host, last};
use crate::listing::{Listing, RemoteFile};
use crate::reference::{RepoId, Revision};
use crate::retry::{Attempts, Fault};

/// One file at the endpoint.
pub(crate) struct Source {
    client: Arc<Client>,
    repository: RepoId,
    revision: Revision,
    file: RemoteFile,
    url: Url,
    seen: Mutex<Seen>,
}

/// What answers have told so far.
#[derive(Default)]
struct Seen {
    /// Where the endpoint redirects to. Asked directly while it answers.
    storage: Option<Url>,
    etag: Option<String>,
    stored_etag: Option<String>,
}

impl Source {
    pub(crate) fn new(client: &Arc<Client>, listing: &Listing, file: &RemoteFile) -> Source {
        let repository = listing.reference.repository.clone();
        let start = [repository.owner(), repository.name(), "resolve", listing.commit.as_str()];
        let url = client.url(start.into_iter().chain(file.path.parts()));
        Source {
            client: client.clone(),
            revision: listing.reference.revision.clone(),
            file: file.clone(),
            url,
            seen: Mutex::default(),
            repository,
        }
    }

    /// Forgets what answers have told: the next attempt reads the file anew.
    pub(crate) fn forget(&self) {
        *self.seen() = Seen::default();
    }

    /// What the endpoint calls the content.
    pub(crate) async fn etag(&self) -> Result<Option<String>, HubError> {
        let mut attempts = Attempts::new(&self.client.limits);
        loop {
            match self.client.send(Method::HEAD, &self.url, None, self.subject()).await {
                Ok(answer) => return Ok(answer.etag),
                Err(fault) => attempts.wait(fault).await.map_err(last)?,
            }
        }
    }

    /// Hands on everything from `from` to the end.
    ///
    /// # Errors
    /// [`Fault::Changed`] where the file is no longer the one whose beginning was handed on.
    pub(crate) async fn stream(
        self: &Arc<Source>,
        from: u64,
        take: &mut impl FnMut(Bytes) -> Result<(), HubError>,
    ) -> Result<(), Fault> {
        let limits = &self.client.limits;
        let mut at = from;
        if self.file.bytes - from > limits.piece && limits.pieces > 1 {
            match self.pieces(&mut at, take).await {
                Err(Fault::NoRanges) => tracing::debug!(file = %self.file.path, "the server sends no parts"),
                ended => return ended,
            }
        }
        self.range(&mut at, self.file.bytes, true, take).await
    }

    /// Hands on a part.
    pub(crate) async fn part(&self, range: Range<u64>, limit: u64) -> Result<Vec<u8>, HubError> {
        let wanted = range.end - range.start;
        if wanted > limit {
            return Err(
                self.problem(format!("{wanted} bytes of it would have to be read, at most {limit} are"))
            );
        }
        // Grows with what arrives, not with what was announced.
        let mut content = Vec::new();
        let mut at = range.start;
        let take = &mut |chunk: Bytes| {
            content.extend_from_slice(&chunk);
            Ok(())
        };
        self.range(&mut at, range.end, true, take).await.map_err(|fault| self.ended(fault))?;
        Ok(content)
    }

    /// A fault as an error of this file.
    pub(crate) fn ended(&self, fault: Fault) -> HubError {
        match fault {
            Fault::Changed => self.problem("it changes at the server while it is read; try again later"),
            fault => last(fault),
        }
    }

    pub(crate) fn problem(&self, problem: impl Into<String>) -> HubError {
        HubError::File { path: self.file.path.to_string(), problem: problem.into() }
    }

    /// Many pieces at once, handed on in their order.
    async fn pieces(
        self: &Arc<Source>,
        at: &mut u64,
        take: &mut impl FnMut(Bytes) -> Result<(), HubError>,
    ) -> Result<(), Fault> {
        let (size, most) = (self.client.limits.piece, self.client.limits.pieces);
        // Ends all pieces when it is dropped.
        let mut tasks = JoinSet::new();
        let mut under_way: VecDeque<UnboundedReceiver<Result<Bytes, Fault>>> = VecDeque::new();
        let mut next = *at;
        while *at < self.file.bytes {
            while under_way.len() < most && next < self.file.bytes {
                let end = self.file.bytes.min(next.saturating_add(size));
                // Holds no more than the piece does: see `range`.
                let (sender, receiver) = unbounded_channel();
                tasks.spawn(self.clone().piece(next..end, sender));
                under_way.push_back(receiver);
                next = end;
            }
            let Some(mut piece) = under_way.pop_front() else { break };
            while let Some(chunk) = piece.recv().await {
                let chunk = chunk?;
                *at += chunk.len() as u64;
                take(chunk)?;
            }
            // Those that are done are few; they would pile up over a large file.
            while tasks.try_join_next().is_some() {}
        }
        Ok(())
    }

    async fn piece(self: Arc<Source>, range: Range<u64>, sender: UnboundedSender<Result<Bytes, Fault>>) {
        let mut at = range.start;
        // A receiver that is gone has ended this task already.
        let take = &mut |chunk: Bytes| {
            let _ = sender.send(Ok(chunk));
            Ok(())
        };
        if let Err(fault) = self.range(&mut at, range.end, false, take).await {
            let _ = sender.send(Err(fault));
        }
    }

    /// Hands on the bytes from `at` to `end`, and never more. `whole` says whether an answer with the whole file will
    /// do; what was not asked for is skipped then.
    async fn range(
        &self,
        at: &mut u64,
        end: u64,
        whole: bool,
        take: &mut impl FnMut(Bytes) -> Result<(), HubError>,
    ) -> Result<(), Fault> {
        let mut attempts = Attempts::new(&self.client.limits);
        while *at < end {
            let before = *at;
            let Err(fault) = self.attempt(at, end, whole, take).await else { return Ok(()) };
            if *at - before >= self.client.limits.least {
                attempts.reset();
            }
            attempts.wait(fault).await?;
        }
        Ok(())
    }

    async fn attempt(
        &self,
        at: &mut u64,
        end: u64,
        whole: bool,
        take: &mut impl FnMut(Bytes) -> Result<(), HubError>,
    ) -> Result<(), Fault> {
        let (mut answer, first) = self.open(*at..end).await?;
        if answer.status != StatusCode::PARTIAL_CONTENT && !whole && end - *at < self.file.bytes {
            return Err(Fault::NoRanges);
        }
        let mut skip = *at - first;
        while let Some(mut chunk) = answer.body.chunk().await? {
            let skipped = skip.min(chunk.len() as u64);
            chunk.advance(skipped as usize);
            skip -= skipped;
            chunk.truncate(usize::try_from(end - *at).unwrap_or(usize::MAX));
            *at += chunk.len() as u64;
            if !chunk.is_empty() {
                take(chunk)?;
            }
            if *at == end {
                return Ok(());
            }
        }
        let cause = format!("the connection ended {} bytes early", end - *at);
        Err(Fault::Passing(HubError::Unreachable { host: host(&answer.url), cause }, None))
    }

    /// An answer that holds the range, and where its content begins.
    async fn open(&self, range: Range<u64>) -> Result<(Answer, u64), Fault> {
        let everything = range == (0..self.file.bytes);
        let asked = (!everything).then_some(&range);
        let storage = self.seen().storage.clone();
        let url = storage.as_ref().unwrap_or(&self.url);
        let answer = match self.client.send(Method::GET, url, asked, self.subject()).await {
            Ok(answer) => answer,
            Err(fault) => {
                // Its address may have run out; the endpoint has new ones.
                self.seen().storage = None;
                return Err(fault);
            }
        };
        self.remember(&answer)?;
        let number = |text: &str| text.parse::<u64>().ok();
        let length = header(&answer.headers, &CONTENT_LENGTH).and_then(number);
        let (first, announced, total) = match answer.status {
            StatusCode::PARTIAL_CONTENT => {
                let text = header(&answer.headers, &CONTENT_RANGE).unwrap_or_default();
                let Some((part, total)) = content_range(text) else {
                    return Err(self.problem(format!("it is sent as the part {:?}", brief(text))).into());
                };
                if part.start != range.start || part.end > range.end {
                    let problem = format!("bytes {range:?} were asked for, {part:?} are sent");
                    return Err(self.problem(problem).into());
                }
                (part.start, part.end - part.start, total)
            }
            _ => (0, self.file.bytes, length),
        };
        if let Some(total) = total.filter(|total| *total != self.file.bytes) {
            let listed = self.file.bytes;
            return Err(self
                .problem(format!("it is listed with {listed} bytes and sent with {total}"))
                .into());
        }
        if length.is_some_and(|length| length != announced) {
            return Err(self.problem("its parts are not as long as they are said to be").into());
        }
        Ok((answer, first))
    }

    /// Holds an answer against those before it.
    fn remember(&self, answer: &Answer) -> Result<(), Fault> {
        let mut seen = self.seen();
        let other = is_other(&mut seen.etag, answer.etag.as_deref());
        let stored_other = is_other(&mut seen.stored_etag, answer.stored_etag.as_deref());
        if answer.url.origin() != self.url.origin() {
            seen.storage = Some(answer.url.clone());
        }
        if other || stored_other { Err(Fault::Changed) } else { Ok(()) }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Nothing that holds the lock can panic half-way through a change.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subject(&self) -> Subject<'_> {
        Subject { repository: &self.repository, revision: Some(&self.revision), path: Some(&self.file.path) }
    }
}

/// Whether a name is another one than that which was known. Remembers the first.
fn is_other(known: &mut Option<String>, now: Option<&str>) -> bool {
    match (known.as_deref(), now) {
        (Some(known), Some(now)) => known != now,
        (None, Some(now)) => {
            *known = Some(now.to_owned());
            false
        }
        (_, None) => false,
    }
}

/// `bytes FIRST-LAST/TOTAL`, where the total may be `*`.
fn content_range(text: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (part, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = part.split_once('-')?;
    let (first, last) = (first.trim().parse::<u64>().ok()?, last.trim().parse::<u64>().ok()?);
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse::<u64>().ok()?),
    };
    let end = last.checked_add(1)?;
    (first < end).then_some((first..end, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_that_an_answer_holds_is_read_strictly() {
        assert_eq!(content_range("bytes 0-0/1"), Some((0..1, Some(1))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5..10, None)));
        for none in [
            "",
            "bytes",
            "bytes */5",
            "bytes 3-2/5",
            "bytes -1/5",
            "items 0-1/2",
            "bytes 0-18446744073709551615/1",
            "bytes 0-1/99999999999999999999",
        ] {
            assert_eq!(content_range(none), None, "{none}");
        }
    }
}
