//! Reading a request's body.

use axum::body::{Body, Bytes, HttpBody};
use futures_util::StreamExt;
use serde_json::{Map, Value};

use super::error::ApiError;

/// The whole body, at most `limit` bytes.
///
/// `None`: the connection broke before the body was complete, and nobody is
/// left to answer.
pub(super) async fn read_body(body: Body, limit: usize) -> Result<Option<Bytes>, ApiError> {
    if body.size_hint().lower() > limit as u64 {
        return Err(ApiError::body_too_large(limit));
    }
    let mut chunks = body.into_data_stream();
    let mut whole = Vec::new();
    while let Some(chunk) = chunks.next().await {
        let Ok(chunk) = chunk else { return Ok(None) };
        if whole.len() + chunk.len() > limit {
            return Err(ApiError::body_too_large(limit));
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(Some(whole.into()))
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

    #[tokio::test]
    async fn a_body_over_the_limit_is_not_read_to_its_end() {
        assert_eq!(read_body(Body::from("12345"), 5).await.unwrap().unwrap(), "12345");
        let error = read_body(Body::from("123456"), 5).await.unwrap_err();
        assert_eq!(error.status.as_u16(), 413);
        let endless =
            futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(b"xxxx")));
        let error = read_body(Body::from_stream(endless), 1 << 10).await.unwrap_err();
        assert_eq!(error.status.as_u16(), 413);
        let broken = futures_util::stream::once(async { Err::<Bytes, _>(std::io::Error::other("gone")) });
        assert!(read_body(Body::from_stream(broken), 5).await.unwrap().is_none());
    }
}
