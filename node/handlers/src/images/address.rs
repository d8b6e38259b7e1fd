//! Images at https addresses. Who named the address is not believed, and neither is who answers there: the digest alone says
//! whether what came is the image.
//!
//! An address may hold a signed token in its query: nothing here tells more of one than its host and its path.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use reqwest::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_RANGE, HeaderName, LOCATION, RANGE};
use reqwest::{Client, Response, StatusCode, Url};
use runtimes::images::{FetchError, ImageRef, ImageSource, Incoming};

use super::guard::{Guard, GuardError, Resolver};
use crate::https;

const URL_BYTES_MAX: usize = 8 * 1024;
const REDIRECTS_MAX: usize = 5;
/// Of an address, in what is told.
const SHOWN_CHARS_MAX: usize = 256;

pub struct FromAddress {
    guard: Arc<Guard>,
    authorities: Option<PathBuf>,
}

impl FromAddress {
    /// `authorities` is a PEM bundle that takes the place of the system's.
    pub fn new(guard: Guard, authorities: Option<PathBuf>) -> Self {
        Self { guard: Arc::new(guard), authorities }
    }

    async fn fetch(&self, image: &ImageRef, offset: u64) -> Result<Incoming, FetchError> {
        let asked = Place::parse(&image.url).map_err(lasting)?;
        let resolver = Resolver(self.guard.clone());
        let client = https::client(self.authorities.as_deref(), |client| client.dns_resolver(resolver));
        let client = client.map_err(|err| passing(kit::chain(&err)))?;
        let answer = self.ask(&client, &asked, offset).await?;
        if answer.response.status() != StatusCode::RANGE_NOT_SATISFIABLE || offset == 0 {
            return answer.incoming(offset);
        }
        match answer.range() {
            // All of it has come, or more than there is: the digest says which.
            Some(Range { sent: None, total_bytes }) if total_bytes <= offset => {
                Ok(Incoming { total_bytes, anew: false, bytes: futures::stream::empty().boxed() })
            }
            _ => self.ask(&client, &asked, 0).await?.incoming(0).map(|all| Incoming { anew: true, ..all }),
        }
    }

    /// Asks for what is behind `offset`, of whoever the address leads to.
    async fn ask(&self, client: &Client, asked: &Place, offset: u64) -> Result<Answer, FetchError> {
        let mut at = asked.clone();
        for _ in 0..=REDIRECTS_MAX {
            // A client resolves no address that is one already.
            if let Some(address) = at.address() {
                self.guard.admit(address).map_err(|err| refused(&at, &err))?;
            }
            let mut request = client.get(at.url.clone()).header(ACCEPT_ENCODING, "identity");
            if offset > 0 {
                request = request.header(RANGE, format!("bytes={offset}-"));
            }
            let response = request.send().await.map_err(|err| failed(&at, err))?;
            match at.leads_on(&response) {
                Ok(Some(next)) => at = next,
                Ok(None) => return Ok(Answer { at, response }),
                Err(why) => return Err(lasting(why)),
            }
        }
        Err(lasting(format!("{at}: it is redirected more than {REDIRECTS_MAX} times")))
    }
}

impl ImageSource for FromAddress {
    fn open<'a>(&'a self, image: &'a ImageRef, offset: u64) -> BoxFuture<'a, Result<Incoming, FetchError>> {
        self.fetch(image, offset).boxed()
    }
}

/// An https URL without a user's name or password. Prints as its host and its path, and those it was come from.
#[derive(Clone)]
struct Place {
    url: Url,
    /// What was asked for, when this is where that leads to.
    asked: Option<Url>,
}

impl Place {
    fn parse(text: &str) -> Result<Self, String> {
        if text.len() > URL_BYTES_MAX {
            return Err(format!("its address is longer than {} KiB", URL_BYTES_MAX / 1024));
        }
        let url = text.parse().map_err(|_| "its address is no URL".to_owned())?;
        Self { url, asked: None }.checked()
    }

    fn checked(self) -> Result<Self, String> {
        let url = &self.url;
        if url.scheme() != "https" || url.host_str().is_none_or(str::is_empty) {
            return Err(format!("{self}: images are fetched by https alone"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(format!("{self}: the address has a user's name or password in it"));
        }
        Ok(self)
    }

    /// Its host, when it is no name.
    fn address(&self) -> Option<std::net::IpAddr> {
        self.url.host_str()?.trim_matches(['[', ']']).parse().ok()
    }

    /// To where whoever answered sends us, if to anywhere.
    fn leads_on(&self, response: &Response) -> Result<Option<Self>, String> {
        if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let to = header(response, LOCATION).filter(|to| to.len() <= URL_BYTES_MAX);
        let url = to.and_then(|to| self.url.join(to).ok());
        let url = url.ok_or_else(|| format!("{self}: it is redirected to what is no URL"))?;
        let asked = Some(self.asked.as_ref().unwrap_or(&self.url).clone());
        Self { url, asked }.checked().map(Some)
    }
}

fn shown(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let mut shown = format!("{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path());
    if let Some((end, _)) = shown.char_indices().nth(SHOWN_CHARS_MAX) {
        shown.truncate(end);
        shown.push_str("...");
    }
    shown
}

fn header(response: &Response, name: HeaderName) -> Option<&str> {
    response.headers().get(name)?.to_str().ok()
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.asked {
            None => f.write_str(&shown(&self.url)),
            Some(asked) => write!(f, "{}, redirected to {}", shown(asked), shown(&self.url)),
        }
    }
}

/// What a Content-Range says (RFC 9110, section 14.4).
#[derive(Debug, PartialEq, Eq)]
struct Range {
    /// The first byte and the last one; none when the server sends none.
    sent: Option<(u64, u64)>,
    total_bytes: u64,
}

impl Range {
    /// None for what is no range of bytes, or of a file whose size is not told.
    fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| {
            let plain = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u64>().ok().filter(|_| plain)
        };
        let (sent, total) = text.strip_prefix("bytes ")?.split_once('/')?;
        let total_bytes = number(total)?;
        if sent == "*" {
            return Some(Self { sent: None, total_bytes });
        }
        let (first, last) = sent.split_once('-')?;
        let (first, last) = (number(first)?, number(last)?);
        (first <= last && last < total_bytes).then_some(Self { sent: Some((first, last)), total_bytes })
    }
}

/// Of whom there was no more to be redirected to.
struct Answer {
    at: Place,
    response: Response,
}

impl Answer {
    fn range(&self) -> Option<Range> {
        header(&self.response, CONTENT_RANGE).and_then(Range::parse)
    }

    /// What comes, when `offset` was asked for.
    fn incoming(self, offset: u64) -> Result<Incoming, FetchError> {
        let status = self.response.status();
        let at = self.at.clone();
        let wrong = |why: String| lasting(format!("{at}: {why}"));
        let length = self.response.content_length();
        let encoding = header(&self.response, CONTENT_ENCODING).unwrap_or("identity");
        let (total_bytes, anew) = match status {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT if !encoding.eq_ignore_ascii_case("identity") => {
                return Err(wrong("it comes packed, which was not asked for".to_owned()));
            }
            StatusCode::OK => {
                let unknown = || wrong("it does not say how long the file is".to_owned());
                (length.ok_or_else(unknown)?, offset > 0)
            }
            StatusCode::PARTIAL_CONTENT if offset > 0 => {
                let total = self.range().and_then(|range| {
                    let (first, last) = range.sent.filter(|(first, _)| *first == offset)?;
                    let fits = length.is_none_or(|length| length == last - first + 1);
                    fits.then_some(range.total_bytes)
                });
                let other = || wrong(format!("it sends another part than that behind byte {offset}"));
                (total.ok_or_else(other)?, false)
            }
            status => {
                let comes_back = status.is_server_error()
                    || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
                let why = format!("{at}: it answers {}", status.as_u16());
                return Err(FetchError { why, lasting: !comes_back });
            }
        };
        let bytes = self.response.bytes_stream().map(move |bytes| bytes.map_err(|err| failed(&at, err)));
        Ok(Incoming { total_bytes, anew, bytes: bytes.boxed() })
    }
}

fn lasting(why: String) -> FetchError {
    FetchError { why, lasting: true }
}

fn passing(why: String) -> FetchError {
    FetchError { why, lasting: false }
}

fn refused(at: &Place, err: &GuardError) -> FetchError {
    FetchError { why: format!("{at}: {}", kit::chain(err)), lasting: err.is_lasting() }
}

/// A line that was cut, or was never there.
fn failed(at: &Place, err: reqwest::Error) -> FetchError {
    // It would tell all of the URL.
    let err = err.without_url();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&err);
    while let Some(err) = cause {
        if let Some(guard) = err.downcast_ref::<GuardError>() {
            return refused(at, guard);
        }
        cause = err.source();
    }
    passing(format!("{at}: {}", kit::chain(&err)))
}

#[cfg(test)]
mod server;

#[cfg(test)]
mod tests;
