//! Reading a request's body, with bounds on what all clients together can make the server hold.
//!
//! A body is bounded by itself, by what all bodies may take at a time, and by how long the next piece of it may take.
//! Reading a large prompt takes many times its size in memory, so large ones are worked on one after another.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use futures_util::StreamExt;
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;

/// What bodies may take together, in KiB.
const HELD_KIB: usize = 256 << 10;
/// Bodies above this are worked on one at a time.
const LARGE_BYTES: usize = 256 << 10;
/// How long the next piece of a body may take.
const PIECE_LIMIT: Duration = Duration::from_secs(30);

/// Bounds what bodies take in memory together. Clones share the bounds.
#[derive(Clone)]
pub(super) struct Intake {
    held: Arc<Semaphore>,
    large: Arc<Semaphore>,
    piece_limit: Duration,
}

impl Default for Intake {
    fn default() -> Self {
        Intake::new(HELD_KIB, PIECE_LIMIT)
    }
}

/// A body, and the room that it takes.
#[derive(Debug)]
pub(super) struct HeldBody {
    pub(super) bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

/// The right to work on a body. For a large one, memory that the work took goes back to the system afterwards.
pub(super) struct Turn {
    large: Option<OwnedSemaphorePermit>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        if self.large.is_some() {
            // SAFETY: has no preconditions; it only gives unused pages of the allocator back.
            unsafe { libc::malloc_trim(0) };
        }
        self.large.take();
    }
}

impl Intake {
    fn new(held_kib: usize, piece_limit: Duration) -> Self {
        Intake { held: Arc::new(Semaphore::new(held_kib)), large: Arc::new(Semaphore::new(1)), piece_limit }
    }

    /// The whole body, at most `limit` bytes.
    ///
    /// `None`: the connection broke before the body was complete, and nobody is
    /// left to answer.
    pub(super) async fn read(&self, body: Body, limit: usize) -> Result<Option<HeldBody>, ApiError> {
        let mut room: Option<OwnedSemaphorePermit> = None;
        let mut whole = Vec::new();
        let complete = self
            .each_piece(body, limit, |piece| {
                whole.extend_from_slice(piece);
                let have = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
                let more = whole.capacity().div_ceil(1024).saturating_sub(have);
                let more = u32::try_from(more).unwrap_or(u32::MAX);
                let permit =
                    self.held.clone().try_acquire_many_owned(more).map_err(|_| ApiError::no_room())?;
                match &mut room {
                    Some(room) => room.merge(permit),
                    None => room = Some(permit),
                }
                Ok(())
            })
            .await?;
        Ok(complete.then(|| HeldBody { bytes: whole.into(), _room: room }))
    }

    /// Reads a body that nobody wants, so that the connection can be used again.
    pub(super) async fn discard(&self, body: Body, limit: usize) {
        let _ = self.each_piece(body, limit, |_| Ok(())).await;
    }

    /// Waits for the turn to work on a body.
    pub(super) async fn turn(&self, body: &HeldBody) -> Turn {
        let large = match body.bytes.len() > LARGE_BYTES {
            true => self.large.clone().acquire_owned().await.ok(),
            false => None,
        };
        Turn { large }
    }

    /// Whether the body came to its end.
    async fn each_piece(
        &self,
        body: Body,
        limit: usize,
        mut take: impl FnMut(&[u8]) -> Result<(), ApiError>,
    ) -> Result<bool, ApiError> {
        if body.size_hint().lower() > limit as u64 {
            return Err(ApiError::body_too_large(limit));
        }
        let mut pieces = body.into_data_stream();
        let mut length = 0;
        loop {
            let Ok(next) = tokio::time::timeout(self.piece_limit, pieces.next()).await else {
                return Err(ApiError::body_stalled(self.piece_limit));
            };
            match next {
                None => return Ok(true),
                Some(Err(_)) => return Ok(false),
                Some(Ok(piece)) => {
                    length += piece.len();
                    if length > limit {
                        return Err(ApiError::body_too_large(limit));
                    }
                    take(&piece)?;
                }
            }
        }
    }
}

/// The JSON object in a body.
pub(super) fn parse_object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    if body.trim_ascii().is_empty() {
        return Err(ApiError::bad_request("the request body is empty; it must be a JSON object"));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(ApiError::bad_request("the request body must be a JSON object")),
        // The error's own words end with line and column.
        Err(error) => Err(ApiError::bad_request(format!("the request body is not valid JSON: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn broken_json_is_refused_with_its_position() {
        let message = parse_object(b"{\"model\": \"x\",\n \"n\" 1}").unwrap_err().message;
        assert!(message.starts_with("the request body is not valid JSON: "), "{message}");
        assert!(message.ends_with("at line 2 column 6"), "{message}");
    }

    #[test]
    fn a_body_is_an_object() {
        assert!(parse_object(b" \n").unwrap_err().message.contains("empty"));
        assert!(parse_object(b"[1]").unwrap_err().message.contains("must be a JSON object"));
        assert!(parse_object(b"{\"a\": \"\xff\"}").is_err());
        assert!(parse_object("[".repeat(100_000).as_bytes()).is_err());
        assert_eq!(parse_object(b"{}").unwrap(), Map::new());
    }

    fn intake() -> Intake {
        Intake::new(64, Duration::from_secs(60))
    }

    fn endless() -> Body {
        let pieces =
            futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 1000])));
        Body::from_stream(pieces)
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_not_read_to_its_end() {
        let intake = intake();
        assert_eq!(intake.read(Body::from("12345"), 5).await.unwrap().unwrap().bytes, "12345");
        let error = intake.read(Body::from("123456"), 5).await.unwrap_err();
        assert_eq!(error.status.as_u16(), 413);
        let error = intake.read(endless(), 1 << 10).await.unwrap_err();
        assert_eq!(error.status.as_u16(), 413);
        let broken = futures_util::stream::once(async { Err::<Bytes, _>(std::io::Error::other("gone")) });
        assert!(intake.read(Body::from_stream(broken), 5).await.unwrap().is_none());
        intake.discard(endless(), 1 << 10).await;
    }

    #[tokio::test]
    async fn all_bodies_together_are_bounded_and_room_comes_back() {
        let intake = intake();
        let first = intake.read(Body::from(vec![b'x'; 40 << 10]), usize::MAX).await.unwrap().unwrap();
        let refused = intake.read(Body::from(vec![b'x'; 40 << 10]), usize::MAX).await.unwrap_err();
        assert_eq!(refused.status.as_u16(), 503);
        drop(first);
        assert!(intake.read(Body::from(vec![b'x'; 40 << 10]), usize::MAX).await.is_ok());
        assert_eq!(intake.read(endless(), usize::MAX).await.unwrap_err().status.as_u16(), 503);
        assert_eq!(intake.held.available_permits(), 64, "nothing is kept of what was refused");
    }

    #[tokio::test]
    async fn a_body_that_stalls_is_given_up() {
        let intake = Intake::new(64, Duration::from_millis(20));
        let stalled = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
        let error = intake.read(Body::from_stream(stalled), 5).await.unwrap_err();
        assert_eq!(error.status.as_u16(), 408);
    }

    #[tokio::test]
    async fn large_bodies_take_turns_and_small_ones_do_not_wait() {
        let intake = Intake::default();
        let body = |length: usize| HeldBody { bytes: vec![b'x'; length].into(), _room: None };
        let first = intake.turn(&body(LARGE_BYTES + 1)).await;
        let small = intake.turn(&body(LARGE_BYTES)).await;
        let second_body = body(LARGE_BYTES + 1);
        let mut second = std::pin::pin!(intake.turn(&second_body));
        assert!(second.as_mut().now_or_never().is_none());
        drop((first, small));
        drop(second.await);
    }
}
