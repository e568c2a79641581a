//! The one client: redirects by hand, so that the token stays with the endpoint; a limit on everything that is read;
//! and a name for every refusal.

use std::error::Error as _;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, ETAG, HeaderMap, HeaderName, HeaderValue, LINK,
    LOCATION, RANGE, RETRY_AFTER,
};
use reqwest::{Method, Response, StatusCode};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use url::Url;

use crate::error::{HubError, brief};
use crate::path::RepoPath;
use crate::reference::{RepoId, Revision};
use crate::retry::{Attempts, Fault};
use crate::settings::{Limits, Settings};

const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
const ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");

/// Redirects that are followed for one request.
const REDIRECTS: usize = 5;

/// What a request is about, for messages.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) repository: &'a RepoId,
    pub(crate) revision: Option<&'a Revision>,
    pub(crate) path: Option<&'a RepoPath>,
}

/// Makes requests.
pub(crate) struct Client {
    http: reqwest::Client,
    endpoint: Url,
    token: Option<HeaderValue>,
    pub(crate) limits: Limits,
}

/// A good answer whose content is still to come.
pub(crate) struct Answer {
    pub(crate) body: Body,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// Where it came from in the end.
    pub(crate) url: Url,
    /// What the endpoint itself calls the content, without quotes.
    pub(crate) etag: Option<String>,
    /// What the host that sent the content calls it.
    pub(crate) stored_etag: Option<String>,
}

impl Client {
    /// Opens no connection.
    ///
    /// # Errors
    /// When the machine's certificates cannot be read.
    pub(crate) fn new(settings: &Settings) -> Result<Client, HubError> {
        // One provider for the process. Another part of it may have chosen one already, which will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut headers = HeaderMap::new();
        // A compressed answer has another length than the file.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(settings.limits.stall)
            .default_headers(headers)
            .user_agent(&settings.user_agent)
            .build()
            .map_err(|error| HubError::Setting {
                name: "the HTTP client".into(),
                problem: format!("cannot be set up: {}", deepest(&error)),
            })?;
        let token = match &settings.token {
            None => None,
            Some(token) => {
                let mut value = HeaderValue::from_str(&token.bearer()).map_err(|_| HubError::Setting {
                    name: "HF_TOKEN".into(),
                    problem: "holds no token".into(),
                })?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Client { http, endpoint: settings.endpoint.clone(), token, limits: settings.limits.clone() })
    }

    /// The endpoint as it is shown, without a slash at its end.
    pub(crate) fn endpoint(&self) -> &str {
        self.endpoint.as_str().trim_end_matches('/')
    }

    /// The address of a repository's page.
    pub(crate) fn page(&self, repository: &RepoId) -> String {
        format!("{}/{repository}", self.endpoint())
    }

    /// An address below the endpoint. Every part becomes one segment, whatever it holds.
    pub(crate) fn url<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.endpoint.clone();
        // Settings let through only addresses that have a path.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(parts);
        }
        url
    }

    /// Reads a JSON document, and the address of its next page where there is one.
    pub(crate) async fn document<T: DeserializeOwned>(
        &self,
        url: &Url,
        subject: Subject<'_>,
    ) -> Result<(T, Option<Url>), HubError> {
        let unusable = |problem: String| HubError::Answer { host: host(url), problem };
        let limit = self.limits.document;
        let mut attempts = Attempts::new(&self.limits);
        let (content, headers) = loop {
            match self.whole(url, subject, limit).await {
                Ok(answer) => break answer,
                Err(fault) => attempts.wait(fault).await.map_err(last)?,
            }
        };
        let document = serde_json::from_slice(&content)
            .map_err(|error| unusable(format!("{}: {}", url.path(), brief(&error.to_string()))))?;
        let next = match next_page(&headers) {
            None => None,
            // A page elsewhere would be asked for with the token.
            Some(text) => match url.join(&text) {
                Ok(next) if next.origin() == self.endpoint.origin() => Some(next),
                _ => return Err(unusable(format!("its next page is elsewhere: {}", brief(&text)))),
            },
        };
        Ok((document, next))
    }

    /// Reads an answer of at most `limit` bytes.
    async fn whole(
        &self,
        url: &Url,
        subject: Subject<'_>,
        limit: u64,
    ) -> Result<(Vec<u8>, HeaderMap), Fault> {
        let mut answer = self.send(Method::GET, url, None, subject).await?;
        let mut content = Vec::new();
        while let Some(chunk) = answer.body.chunk().await? {
            if content.len() as u64 + chunk.len() as u64 > limit {
                let problem = format!("{} is longer than {limit} bytes", url.path());
                return Err(HubError::Answer { host: host(url), problem }.into());
            }
            content.extend_from_slice(&chunk);
        }
        Ok((content, answer.headers))
    }

    /// Sends a request and follows redirects. The token goes along only while the address is the endpoint's.
    pub(crate) async fn send(
        &self,
        method: Method,
        url: &Url,
        range: Option<&Range<u64>>,
        subject: Subject<'_>,
    ) -> Result<Answer, Fault> {
        let mut url = url.clone();
        let mut etag = None;
        for _ in 0..=REDIRECTS {
            let own = url.origin() == self.endpoint.origin();
            let mut request = self.http.request(method.clone(), url.clone());
            if let Some(token) = self.token.as_ref().filter(|_| own) {
                request = request.header(AUTHORIZATION, token.clone());
            }
            if let Some(range) = range {
                request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end - 1));
            }
            let response = match timeout(self.limits.stall, request.send()).await {
                Ok(Ok(response)) => response,
                Ok(Err(error)) => return Err(failed(&url, &error)),
                Err(_) => return Err(silent(&url, self.limits.stall)),
            };
            let headers = response.headers().clone();
            if own {
                let found = header(&headers, &LINKED_ETAG).or_else(|| header(&headers, &ETAG));
                etag = etag.or(found.map(bare_etag));
            }
            let status = response.status();
            if status.is_redirection()
                && let Some(location) = header(&headers, &LOCATION)
            {
                url = self.redirected(&url, location)?;
                continue;
            }
            if !status.is_success() {
                return Err(self.refusal(&url, status, &headers, own, subject));
            }
            let coded = header(&headers, &CONTENT_ENCODING).filter(|coding| *coding != "identity");
            if let Some(coding) = coded {
                let problem = format!("it sends {} content although none was asked for", brief(coding));
                return Err(HubError::Answer { host: host(&url), problem }.into());
            }
            let stored_etag = header(&headers, &ETAG).map(bare_etag);
            let body = Body::new(response, url.clone(), &self.limits);
            return Ok(Answer { body, status, headers, url, etag, stored_etag });
        }
        let problem = format!("more than {REDIRECTS} redirects");
        Err(HubError::Answer { host: host(&url), problem }.into())
    }

    fn redirected(&self, from: &Url, location: &str) -> Result<Url, HubError> {
        let unusable = |problem: &str| HubError::Answer {
            host: host(from),
            problem: format!("it redirects to {}, {problem}", brief(location)),
        };
        let to = from.join(location).map_err(|_| unusable("which is no address"))?;
        match (from.scheme(), to.scheme()) {
            (_, "https") | ("http", "http") => Ok(to),
            ("https", "http") => Err(unusable("which is not encrypted")),
            _ => Err(unusable("which is not the web")),
        }
    }

    /// What a status that is no success means.
    fn refusal(
        &self,
        url: &Url,
        status: StatusCode,
        headers: &HeaderMap,
        own: bool,
        subject: Subject<'_>,
    ) -> Fault {
        let repository = subject.repository.to_string();
        let endpoint = self.endpoint().to_owned();
        let passing = |problem: String| {
            let wait = retry_after(headers);
            Fault::Passing(HubError::Answer { host: host(url), problem }, wait)
        };
        if status == StatusCode::TOO_MANY_REQUESTS {
            let wait = retry_after(headers);
            let when = wait.map_or(String::new(), |wait| format!("; try again in {} s", wait.as_secs()));
            return Fault::Passing(HubError::RateLimited { endpoint, when }, wait);
        }
        // Addresses of stored files are valid for a while; a new one comes from the endpoint.
        if !own || status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
            return passing(format!("HTTP {}", status.as_u16()));
        }
        let code = header(headers, &ERROR_CODE).unwrap_or_default();
        Fault::Final(match (status, code) {
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, "GatedRepo") => {
                HubError::Gated { repository, page: self.page(subject.repository) }
            }
            // Without a token the Hub answers 401 for what does not exist as well.
            (StatusCode::UNAUTHORIZED, "RepoNotFound") => self.not_found(repository),
            (StatusCode::UNAUTHORIZED, _) if self.token.is_none() => self.not_found(repository),
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => {
                HubError::Unauthorised { endpoint, status: status.as_u16(), repository }
            }
            (StatusCode::NOT_FOUND, "RevisionNotFound") => {
                let revision = subject.revision.map(ToString::to_string).unwrap_or_default();
                let page = format!("{}/tree/main", self.page(subject.repository));
                HubError::NoRevision { repository, revision, page }
            }
            (StatusCode::NOT_FOUND, _) => match subject.path {
                Some(path) => HubError::File {
                    path: path.to_string(),
                    problem: format!("{repository} lists it and does not have it"),
                },
                None => self.not_found(repository),
            },
            _ => HubError::Answer { host: host(url), problem: format!("HTTP {}", status.as_u16()) },
        })
    }

    fn not_found(&self, repository: String) -> HubError {
        let advice = match self.token {
            None => "for a private one set HF_TOKEN",
            Some(_) => "the token in use may not be allowed to see it",
        };
        HubError::NotFound { repository, endpoint: self.endpoint().to_owned(), advice }
    }
}

/// The content of an answer, with an eye on the clock.
pub(crate) struct Body {
    response: Response,
    url: Url,
    stall: Duration,
    least: u64,
    since: Instant,
    arrived: u64,
}

impl Body {
    fn new(response: Response, url: Url, limits: &Limits) -> Body {
        Body { response, url, stall: limits.stall, least: limits.least, since: Instant::now(), arrived: 0 }
    }

    /// The next bytes; `None` at the end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, Fault> {
        let chunk = match timeout(self.stall, self.response.chunk()).await {
            Ok(Ok(chunk)) => chunk,
            Ok(Err(error)) => return Err(failed(&self.url, &error)),
            Err(_) => return Err(silent(&self.url, self.stall)),
        };
        let Some(chunk) = chunk else { return Ok(None) };
        self.arrived += chunk.len() as u64;
        // A byte now and then keeps a connection alive for ever.
        if self.since.elapsed() >= self.stall {
            if self.arrived < self.least {
                return Err(silent(&self.url, self.stall));
            }
            (self.since, self.arrived) = (Instant::now(), 0);
        }
        Ok(Some(chunk))
    }
}

/// The error of a fault that no further attempt follows.
pub(crate) fn last(fault: Fault) -> HubError {
    match fault {
        Fault::Passing(error, _) | Fault::Final(error) => error,
        Fault::Changed | Fault::NoRanges => HubError::Answer {
            host: "the Hub".into(),
            problem: "a file was not sent as it was asked for".into(),
        },
    }
}

/// The host of an address, with its port where that is not the usual one.
pub(crate) fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or("the Hub");
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// A header's text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn silent(url: &Url, stall: Duration) -> Fault {
    let cause = format!("it sent next to nothing for {} s", stall.as_secs_f32());
    Fault::Passing(HubError::Unreachable { host: host(url), cause }, None)
}

/// What a failed exchange means.
fn failed(url: &Url, error: &reqwest::Error) -> Fault {
    let host = host(url);
    match certificate_problem(error) {
        Some(cause) => Fault::Final(HubError::Certificate { host, cause }),
        None => Fault::Passing(HubError::Unreachable { host, cause: brief(&deepest(error)) }, None),
    }
}

fn certificate_problem(error: &reqwest::Error) -> Option<String> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(error) = cause {
        let within = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let tls = within.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::InvalidCertificate(problem)) = tls.or_else(|| error.downcast_ref()) {
            return Some(format!("its certificate is not accepted ({problem})"));
        }
        cause = error.source();
    }
    None
}

/// The innermost cause says what happened; the outer ones say what was being done.
fn deepest(error: &reqwest::Error) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

/// An etag without the mark of a weak one and without quotes.
fn bare_etag(text: &str) -> String {
    text.trim().trim_start_matches("W/").trim_matches('"').to_owned()
}

/// The address of the next page: `Link: <ADDRESS>; rel="next"`.
fn next_page(headers: &HeaderMap) -> Option<String> {
    headers.get_all(LINK).iter().filter_map(|value| value.to_str().ok()).find_map(|value| {
        let next =
            value.split(',').find(|link| link.contains("rel=\"next\"") || link.contains("rel=next"))?;
        let (_, rest) = next.split_once('<')?;
        Some(rest.split_once('>')?.0.to_owned())
    })
}

/// `Retry-After`, as seconds or as a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = header(headers, &RETRY_AFTER)?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn the_next_page_is_found_among_links() {
        let link = |value: &str| next_page(&headers(LINK, value));
        assert_eq!(link("<https://h/a?x=1>; rel=\"next\"").as_deref(), Some("https://h/a?x=1"));
        assert_eq!(link("<https://h/p>; rel=\"prev\", </b>; rel=\"next\"").as_deref(), Some("/b"));
        for none in ["", "<https://h/p>; rel=\"prev\"", "https://h; rel=\"next\"", "<x; rel=\"next\""] {
            assert_eq!(link(none), None, "{none}");
        }
    }

    #[test]
    fn a_wait_is_read_as_seconds_and_as_a_date() {
        let wait = |value: &str| retry_after(&headers(RETRY_AFTER, value));
        assert_eq!(wait("7"), Some(Duration::from_secs(7)));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        let later = wait("Fri, 31 Dec 9999 23:59:59 GMT").unwrap();
        assert!(later > Duration::from_secs(1 << 30));
        for none in ["", "soon", "-1"] {
            assert_eq!(wait(none), None, "{none}");
        }
    }

    #[test]
    fn etags_lose_quotes_and_the_mark_of_weakness() {
        for etag in ["abc", "\"abc\"", "W/\"abc\""] {
            assert_eq!(bare_etag(etag), "abc");
        }
    }

    #[test]
    fn redirects_never_lose_their_encryption() {
        let client = Client::new(&Settings::from_variables(|_| None).unwrap()).unwrap();
        let from = Url::parse("https://hub.example/a").unwrap();
        assert_eq!(client.redirected(&from, "/b").unwrap().as_str(), "https://hub.example/b");
        assert_eq!(
            client.redirected(&from, "https://cdn.example/c").unwrap().host_str(),
            Some("cdn.example")
        );
        for to in ["http://cdn.example/c", "file:///etc/passwd", "data:,x", "https://"] {
            assert!(client.redirected(&from, to).is_err(), "{to}");
        }
    }

    #[test]
    fn parts_of_an_address_stay_parts() {
        let client = Client::new(&Settings::from_variables(|_| None).unwrap()).unwrap();
        let url = client.url(["o", "n", "resolve", "refs/pr/1", "a b#?%2e.json"]);
        assert_eq!(url.as_str(), "https://huggingface.co/o/n/resolve/refs%2Fpr%2F1/a%20b%23%3F%252e.json");
    }
}
