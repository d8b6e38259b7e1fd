//! An HTTP server that answers from a script, one request a connection, and keeps what it was asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

/// What came in.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// `POST /api/compute/nodes/list`.
    pub line: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// Null when there was none.
    pub body: Value,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// What goes out.
#[derive(Debug, Clone)]
pub struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
    /// Closes the connection without an answer.
    drops: bool,
}

impl Answer {
    pub fn json(body: Value) -> Self {
        Self { status: 200, headers: Vec::new(), body: body.to_string(), drops: false }
    }

    pub fn text(status: u16, body: &str) -> Self {
        Self { status, headers: Vec::new(), body: body.to_owned(), drops: false }
    }

    /// An error as the server writes it.
    pub fn error(code: model::ErrorCode, message: &str, details: Value) -> Self {
        let body = json!({ "error": {
            "code": code.name(), "message": message, "details": details,
            "requestId": "req_01k5w000000000000000000000", "docs": api::docs_path(code),
        }});
        Self { status: code.http_status(), headers: Vec::new(), body: body.to_string(), drops: false }
    }

    pub fn dropped() -> Self {
        Self { status: 0, headers: Vec::new(), body: String::new(), drops: true }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

type Script = Box<dyn FnMut(&Asked) -> Answer + Send>;

/// Serves until it is dropped.
pub struct Stub {
    url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    stop: Arc<std::sync::atomic::AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stub {
    /// Answers each request by a function of it.
    pub fn by(script: impl FnMut(&Asked) -> Answer + Send + 'static) -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (asked, stop) = (asked.clone(), stop.clone());
            move || serve(&listener, Box::new(script), &asked, &stop)
        });
        Stub { url: format!("http://{address}"), asked, stop, thread: Some(thread) }
    }

    /// Answers in order, the last one for ever.
    pub fn script(answers: Vec<Answer>) -> Stub {
        let mut answers = answers.into_iter().peekable();
        let mut last = Answer::text(500, "the script is empty");
        Stub::by(move |_| {
            if let Some(next) = answers.next() {
                last = next;
            }
            last.clone()
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no holder of this lock panics").clone()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::SeqCst);
        // Wakes the accept.
        let _ = TcpStream::connect(self.url.trim_start_matches("http://"));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    listener: &TcpListener,
    mut script: Script,
    asked: &Mutex<Vec<Asked>>,
    stop: &std::sync::atomic::AtomicBool,
) {
    for stream in listener.incoming() {
        if stop.load(std::sync::atomic::Ordering::SeqCst) {
            return;
        }
        let Ok(mut stream) = stream else { continue };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        let Some(request) = read(&stream) else { continue };
        let answer = script(&request);
        asked.lock().expect("no holder of this lock panics").push(request);
        if answer.drops {
            continue;
        }
        let mut head = format!(
            "HTTP/1.1 {} X\r\ncontent-length: {}\r\nconnection: close\r\n",
            answer.status,
            answer.body.len()
        );
        for (name, value) in &answer.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let _ = stream.write_all(format!("{head}\r\n{}", answer.body).as_bytes());
    }
}

fn read(stream: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    let mut headers = Vec::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = header.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers
        .iter()
        .find(|(name, _)| name == "content-length")
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Asked { line, headers, body: serde_json::from_slice(&body).unwrap_or(Value::Null) })
}
