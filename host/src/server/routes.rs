//! The routes: who may ask, what is asked, which part answers.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, Response, StatusCode};
use axum::middleware::{self, Next};
use axum::routing::{any, get, post};
use serde_json::{Map, Value, json};

use super::answer;
use super::body::parse_object;
use super::error::{ApiError, json_response};
use super::health;
use super::identity::new_id;
use super::prompt::{Interface, Prepared, prepare};
use super::reply::Reply;
use super::serve::App;

/// Everything that the server answers.
pub(super) fn router(app: Arc<App>) -> Router {
    let chat = |state, request| completion(state, request, Interface::Chat);
    let text = |state, request| completion(state, request, Interface::Completion);
    Router::new()
        .route("/health", get(answer_health).fallback(|state, request| wrong_method(state, request, "GET")))
        .route("/v1/models", get(models).fallback(|state, request| wrong_method(state, request, "GET")))
        .route(
            "/v1/chat/completions",
            post(chat).fallback(|state, request| wrong_method(state, request, "POST")),
        )
        .route("/v1/completions", post(text).fallback(|state, request| wrong_method(state, request, "POST")))
        .fallback(any(no_route))
        .layer(middleware::from_fn_with_state(app.clone(), require_key))
        .with_state(app)
}

/// Turns away requests to gated routes that bring no valid key.
async fn require_key(State(app): State<Arc<App>>, request: Request, next: Next) -> Response<Body> {
    if app.keys.are_required() && is_gated(request.uri().path()) {
        match app.keys.check(request.headers()) {
            Some(label) => tracing::debug!(key = label, path = request.uri().path(), "request"),
            None => return ApiError::unauthorized().into_response(),
        }
    }
    next.run(request).await
}

/// Every route but the one that tells whether the server lives.
fn is_gated(path: &str) -> bool {
    path != "/health"
}

async fn answer_health(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let details = !app.keys.are_required() || app.keys.check(request.headers()).is_some();
    let fallback = app.model.fallback.as_deref();
    let (code, document) = health::health(&app.engine, app.connections.count(), fallback, details);
    json_response(code, &document)
}

async fn models(State(app): State<Arc<App>>) -> Response<Body> {
    let models: Vec<Value> = app
        .settings
        .models
        .iter()
        .map(|id| {
            json!({
                "id": id,
                "object": "model",
                "created": app.settings.created,
                "owned_by": "tensorfold",
                "max_model_len": app.engine.context(),
            })
        })
        .collect();
    json_response(StatusCode::OK, &json!({ "object": "list", "data": models }))
}

/// Answers both completion routes.
async fn completion(State(app): State<Arc<App>>, request: Request, route: Interface) -> Response<Body> {
    let id = new_id(match route {
        Interface::Chat => "chatcmpl-",
        Interface::Completion => "cmpl-",
    });
    match complete(&app, &id, request, route).await {
        Ok(response) => response,
        Err(Refused::Before(error)) => {
            app.lines.refused(&id, &error);
            error.into_response()
        }
        Err(Refused::Ended(error)) => error.into_response(),
    }
}

/// How a request comes to have no reply.
enum Refused {
    /// It was not begun.
    Before(ApiError),
    /// It was begun, and the user was told of its end.
    Ended(ApiError),
}

async fn complete(
    app: &Arc<App>,
    id: &str,
    request: Request,
    route: Interface,
) -> Result<Response<Body>, Refused> {
    let path = request.uri().path().to_owned();
    let body = app
        .intake
        .read(request.into_body(), app.settings.body_limit_bytes)
        .await
        .map_err(Refused::Before)?
        .ok_or_else(|| Refused::Before(ApiError::bad_request("the request body ended early")))?;
    if app.stopping.is_stopping() {
        return Err(Refused::Before(ApiError::unavailable(crate::engine::SHUTTING_DOWN)));
    }
    // Parsing and tokenizing a long prompt takes a while: not on a thread that
    // answers connections.
    let turn = app.intake.turn(&body).await;
    let prepared = tokio::task::spawn_blocking({
        let (app, id) = (app.clone(), id.to_owned());
        move || -> Result<Prepared, ApiError> {
            // Given back when the work is done, also when nobody waits for it any more.
            let _turn = turn;
            let object: Map<String, Value> = parse_object(&body.bytes)?;
            if let Some(log) = &app.request_log {
                log.write(&id, &path, &object);
            }
            prepare(route, &object, &app.settings, &app.model.text)
        }
    })
    .await
    .unwrap_or_else(|_| Err(ApiError::engine("the request could not be read: a fault of this server")))
    .map_err(Refused::Before)?;

    let stream = prepared.fields.stream;
    let (interface, model, has_tools) =
        (prepared.interface, prepared.model.clone(), prepared.text.tools.is_some());
    match Reply::submit(app, id.to_owned(), prepared) {
        Ok(reply) if stream => Ok(answer::streamed(reply)),
        Ok(reply) => answer::whole(reply).await.map_err(Refused::Ended),
        Err(error) if stream && error.is_context_exceeded() => {
            app.lines.refused(id, &error);
            Ok(answer::streamed_refusal(id, &model, interface, !has_tools, &error))
        }
        Err(error) => Err(Refused::Before(error)),
    }
}

async fn no_route(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let error = ApiError::no_route(request.method().as_str(), request.uri().path());
    drain(&app, request).await;
    error.into_response()
}

async fn wrong_method(
    State(app): State<Arc<App>>,
    request: Request,
    allowed: &'static str,
) -> Response<Body> {
    // A question of what is possible, not a mistake.
    if request.method() == Method::OPTIONS {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        response
            .headers_mut()
            .insert(axum::http::header::ALLOW, axum::http::HeaderValue::from_static(allowed));
        return response;
    }
    let error = ApiError::wrong_method(request.method().as_str(), request.uri().path(), allowed);
    drain(&app, request).await;
    error.into_response()
}

/// Reads a body that nobody wants, so that the connection can be used again.
async fn drain(app: &App, request: Request) {
    app.intake.discard(request.into_body(), app.settings.body_limit_bytes).await;
}
