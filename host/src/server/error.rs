//! Refusals and failures as clients see them: one shape, built in one place.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{
    ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use axum::http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::engine::{FailureKind, SubmitError};

/// Characters of a message at most.
const MESSAGE_MAX: usize = 1000;

/// An answer that is not a reply.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) message: String,
    kind: Kind,
    headers: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// The request is at fault; `param` and `code` where clients act on them.
    Request { param: Option<&'static str>, code: Option<&'static str> },
    /// As `Request`, with `param` and `code` always present, null or not.
    Access { code: &'static str },
    /// The server is at fault for now.
    Server,
    /// The engine broke: nothing but the message.
    Engine,
}

impl ApiError {
    /// The request cannot be served as it is.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message, Kind::Request { param: None, code: None })
    }

    /// Prompt and reply do not fit the context. The message begins so that
    /// clients know to compact the conversation.
    pub(super) fn context_exceeded(
        param: &'static str,
        context: u32,
        prompt: usize,
        max_tokens: Option<u32>,
    ) -> Self {
        let asked = match max_tokens {
            Some(max_tokens) => format!(
                "you asked for {} tokens ({prompt} in the {param}, {max_tokens} for the reply)",
                prompt as u64 + u64::from(max_tokens)
            ),
            None => {
                format!("the {param} alone take{} {prompt} tokens", if param == "prompt" { "s" } else { "" })
            }
        };
        Self::new(
            StatusCode::BAD_REQUEST,
            format!(
                "This server's maximum context length is {context} tokens, but {asked}; shorten the {param} or lower max_tokens"
            ),
            Kind::Request { param: Some(param), code: Some("context_length_exceeded") },
        )
    }

    /// A text so long that it need not be tokenized to know that it does not fit.
    pub(super) fn context_far_exceeded(param: &'static str, context: u32, bytes: usize) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            format!(
                "This server's maximum context length is {context} tokens, but the {param} alone take{} {bytes} bytes of text, more than that holds; shorten the {param}",
                if param == "prompt" { "s" } else { "" }
            ),
            Kind::Request { param: Some(param), code: Some("context_length_exceeded") },
        )
    }

    /// No valid key came with the request. The connection is closed.
    pub(super) fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "A valid API key is required",
            Kind::Access { code: "invalid_api_key" },
        )
        .with_header(WWW_AUTHENTICATE, "Bearer")
        .with_header(CONNECTION, "close")
    }

    /// There is no such route.
    pub(super) fn no_route(method: &str, path: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            format!("{method} {path} is not a route of this server"),
            Kind::Access { code: "unknown_url" },
        )
    }

    /// The route exists, for other methods.
    pub(super) fn wrong_method(method: &str, path: &str, allowed: &'static str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            format!("{path} does not answer {method}; use {allowed}"),
            Kind::Access { code: "method_not_allowed" },
        )
        .with_header(ALLOW, allowed)
    }

    /// The body is larger than the server takes.
    pub(super) fn body_too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the request body is larger than the {limit} bytes that this server takes"),
            Kind::Request { param: None, code: None },
        )
    }

    /// The rest of the body did not come. The connection is closed.
    pub(super) fn body_stalled(waited: Duration) -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("nothing more of the request body came within {} seconds", waited.as_secs_f32()),
            Kind::Request { param: None, code: None },
        )
        .with_header(CONNECTION, "close")
    }

    /// All clients together send more than the server can hold.
    pub(super) fn no_room() -> Self {
        Self::unavailable("the server holds as many large requests as it can; try again later")
            .with_header(RETRY_AFTER, "1")
    }

    /// The engine broke.
    pub(super) fn engine(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message, Kind::Engine)
    }

    /// Not now.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message, Kind::Server)
    }

    /// Why the engine did not take a request whose prompt came in `param`.
    pub(super) fn from_submit(error: &SubmitError) -> Self {
        match error {
            SubmitError::Busy { .. } => Self::unavailable(error.to_string()).with_header(RETRY_AFTER, "1"),
            SubmitError::Stopping => Self::unavailable(error.to_string()),
            SubmitError::Failed(_) => Self::engine(error.to_string()),
            SubmitError::EmptyPrompt
            | SubmitError::UnknownToken { .. }
            | SubmitError::NoReply
            | SubmitError::ContextExceeded { .. } => Self::bad_request(error.to_string()),
        }
    }

    /// Why a reply was not completed.
    pub(super) fn from_failure(kind: FailureKind, message: String) -> Self {
        match kind {
            FailureKind::Engine => Self::engine(message),
            FailureKind::ShuttingDown => Self::unavailable(message),
        }
    }

    /// Whether the context was too short.
    pub(super) fn is_context_exceeded(&self) -> bool {
        matches!(self.kind, Kind::Request { code: Some("context_length_exceeded"), .. })
    }

    /// The body of the answer.
    pub(super) fn body(&self) -> Value {
        let mut error = Map::new();
        error.insert("message".to_owned(), json!(self.message));
        match &self.kind {
            Kind::Request { param, code } => {
                error.insert("type".to_owned(), json!("invalid_request_error"));
                if let Some(param) = param {
                    error.insert("param".to_owned(), json!(param));
                }
                if let Some(code) = code {
                    error.insert("code".to_owned(), json!(code));
                }
            }
            Kind::Access { code } => {
                error.insert("type".to_owned(), json!("invalid_request_error"));
                error.insert("param".to_owned(), Value::Null);
                error.insert("code".to_owned(), json!(code));
            }
            Kind::Server => {
                error.insert("type".to_owned(), json!("server_error"));
            }
            Kind::Engine => {}
        }
        json!({ "error": error })
    }

    /// The event by which an open stream ends with this error.
    pub(super) fn event(&self) -> Value {
        match self.kind {
            Kind::Request { .. } | Kind::Access { .. } => self.body(),
            Kind::Server | Kind::Engine => {
                json!({ "error": { "message": self.message, "type": "server_error" } })
            }
        }
    }

    /// The whole answer.
    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = json_response(self.status, &self.body());
        for (name, value) in self.headers {
            response.headers_mut().insert(name, value);
        }
        response
    }

    fn new(status: StatusCode, message: impl Into<String>, kind: Kind) -> Self {
        let mut message = message.into();
        // What a client sent may be quoted in it, and goes back to the client and into the log.
        if let Some((end, _)) = message.char_indices().nth(MESSAGE_MAX) {
            message.truncate(end);
            message.push_str(" ...");
        }
        ApiError { status, message, kind, headers: Vec::new() }
    }

    fn with_header(mut self, name: HeaderName, value: &'static str) -> Self {
        self.headers.push((name, HeaderValue::from_static(value)));
        self
    }
}

/// A JSON answer.
pub(super) fn json_response(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_message_and_type_alone() {
        let body = ApiError::bad_request("n must be 1").body();
        assert_eq!(body, json!({"error": {"message": "n must be 1", "type": "invalid_request_error"}}));
    }

    #[test]
    fn a_message_is_bounded_whatever_it_quotes() {
        let message = ApiError::bad_request("ä".repeat(5000)).message;
        assert_eq!(message.chars().count(), MESSAGE_MAX + 4);
        assert!(message.ends_with("ä ..."));
    }

    #[test]
    fn a_context_refusal_begins_as_clients_expect_and_names_param_and_code() {
        let body = ApiError::context_exceeded("messages", 4096, 4000, Some(200)).body();
        let error = &body["error"];
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .starts_with("This server's maximum context length is 4096 tokens")
        );
        assert_eq!(error["param"], "messages");
        assert_eq!(error["code"], "context_length_exceeded");
        assert_eq!(error["type"], "invalid_request_error");
    }

    #[test]
    fn a_missing_key_is_answered_to_the_letter() {
        let body = ApiError::unauthorized().body().to_string();
        assert_eq!(
            body,
            r#"{"error":{"message":"A valid API key is required","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}"#
        );
        let response = ApiError::unauthorized().into_response();
        assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer");
        assert_eq!(response.headers()[CONNECTION], "close");
    }

    #[test]
    fn a_broken_engine_is_a_message_alone_and_a_typed_event() {
        let error = ApiError::engine("gone");
        assert_eq!(error.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(error.body(), json!({"error": {"message": "gone"}}));
        assert_eq!(error.event(), json!({"error": {"message": "gone", "type": "server_error"}}));
    }

    #[test]
    fn a_busy_engine_says_when_to_come_back() {
        let response = ApiError::from_submit(&SubmitError::Busy { waiting: 3 }).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }
}
