//! A shell of this node on a terminal of its own, for whoever is let onto its console.

use std::collections::VecDeque;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use agent::link::ByteStream;
use futures::future::BoxFuture;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

pub trait Shell: Send + Sync + 'static {
    fn start(&self) -> io::Result<Session>;

    /// A connection to the SSH server of this very machine; none where there is no such machine.
    fn ssh(&self, port: u16) -> Option<BoxFuture<'static, io::Result<Box<dyn ByteStream>>>> {
        let _ = port;
        None
    }
}

/// A shell that runs. Dropped, it is hung up on.
pub struct Session {
    pub stream: Box<dyn ByteStream>,
    pub control: Box<dyn Control>,
}

pub trait Control: Send {
    /// Tells the terminal its size: columns and rows.
    fn resizer(&self) -> Box<dyn Fn(u16, u16) + Send + Sync>;

    /// Waits for the shell's end. Gives its exit status, 255 when it was ended by a signal.
    fn ended(self: Box<Self>) -> BoxFuture<'static, u8>;
}

/// A login shell of the daemon's user, on a new pseudo-terminal that is its session's own.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostShell;

/// What a terminal is taken for that did not say what it is.
const TERM: &str = "xterm-256color";
const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];

impl Shell for HostShell {
    fn start(&self) -> io::Result<Session> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(name.as_c_str(), flags, Mode::empty())?;
        let shell = SHELLS.into_iter().find(|shell| std::path::Path::new(shell).exists());
        let shell = shell.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no /bin/sh"))?;
        let end = |slave: &OwnedFd| Ok::<_, io::Error>(Stdio::from(slave.try_clone()?));
        // A session of its own whose terminal this is, so that keys like Ctrl-C reach what runs in it, and nothing of the daemon's.
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", shell, "-l"])
            .env_clear()
            .envs([("TERM", TERM), ("HOME", "/root"), ("USER", "root"), ("SHELL", shell)])
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir("/")
            .stdin(end(&slave)?)
            .stdout(end(&slave)?)
            .stderr(Stdio::from(slave))
            .kill_on_drop(true)
            .spawn()?;
        let stream = Box::new(Terminal::new(&master)?);
        Ok(Session { stream, control: Box::new(Running { child, master: Arc::new(master) }) })
    }

    fn ssh(&self, port: u16) -> Option<BoxFuture<'static, io::Result<Box<dyn ByteStream>>>> {
        Some(Box::pin(async move {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        }))
    }
}

struct Running {
    child: Child,
    master: Arc<OwnedFd>,
}

impl Control for Running {
    fn resizer(&self) -> Box<dyn Fn(u16, u16) + Send + Sync> {
        let master = self.master.clone();
        Box::new(move |columns, rows| {
            let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
            // A terminal that does not take it has the size it had.
            let _ = tcsetwinsize(&*master, size);
        })
    }

    fn ended(mut self: Box<Self>) -> BoxFuture<'static, u8> {
        Box::pin(async move {
            let code = self.child.wait().await.ok().and_then(|status| status.code());
            code.and_then(|code| u8::try_from(code).ok()).unwrap_or(255)
        })
    }
}

/// The daemon's side of a pseudo-terminal.
struct Terminal {
    from: pipe::Receiver,
    to: pipe::Sender,
}

impl Terminal {
    fn new(master: &OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(master, true)?;
        // It is no pipe, and is waited for as one is.
        Ok(Self {
            from: pipe::Receiver::from_owned_fd_unchecked(master.try_clone()?)?,
            to: pipe::Sender::from_owned_fd_unchecked(master.try_clone()?)?,
        })
    }
}

impl AsyncRead for Terminal {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match ready!(Pin::new(&mut self.from).poll_read(cx, buf)) {
            // The last of those who had it open has closed it.
            Err(err) if err.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                Poll::Ready(Ok(()))
            }
            done => Poll::Ready(done),
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.to).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Says back what it is told, for a machine that is not there.
#[derive(Debug, Clone, Copy, Default)]
pub struct EchoShell;

impl Shell for EchoShell {
    fn start(&self) -> io::Result<Session> {
        Ok(Session { stream: echo("shell: "), control: Box::new(Echoing) })
    }
}

struct Echoing;

impl Control for Echoing {
    fn resizer(&self) -> Box<dyn Fn(u16, u16) + Send + Sync> {
        Box::new(|_, _| {})
    }

    fn ended(self: Box<Self>) -> BoxFuture<'static, u8> {
        Box::pin(std::future::ready(0))
    }
}

/// A stream that says back what it is told, with something before each piece.
pub fn echo(before: &'static str) -> Box<dyn ByteStream> {
    Box::new(Echo { before, said: VecDeque::new(), reader: None })
}

/// When this much waits to be read, what is heard then is forgotten.
const ECHO_BYTES_MAX: usize = 64 * 1024;

struct Echo {
    before: &'static str,
    said: VecDeque<u8>,
    /// Whoever waits for something to read.
    reader: Option<Waker>,
}

impl AsyncRead for Echo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.said.is_empty() {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let length = buf.remaining().min(self.said.len());
        let piece: Vec<u8> = self.said.drain(..length).collect();
        buf.put_slice(&piece);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Echo {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.said.len() < ECHO_BYTES_MAX {
            let before = self.before;
            self.said.extend(before.as_bytes());
            self.said.extend(bytes);
        }
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_shell_has_a_terminal_with_a_size_and_an_exit_status() {
        let Session { mut stream, control } = HostShell.start().unwrap();
        (control.resizer())(91, 33);
        stream.write_all(b"stty size; test -t 0 && echo has-$((1+1))-terminal; exit 7\n").await.unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).await.unwrap();
        assert!(said.contains("33 91"), "{said}");
        assert!(said.contains("has-2-terminal"), "{said}");
        assert_eq!(control.ended().await, 7);
    }
}
