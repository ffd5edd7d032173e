//! Transfers over TCP, one to a connection, asked for by a line:
//!
//! - `GET <bytes>`: that much payload follows, then the connection closes.
//! - `PUT <bytes>`: the client sends that much; the answer is the SHA-256 of what came, and a newline.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread,
};

use anyhow::{Context as _, Result, bail};

use crate::{command::sha256, payload};

/// Serves for ever; every transfer and every failed one is reported through `report`.
pub fn serve(listener: &TcpListener, report: fn(&str)) -> Result<()> {
    loop {
        let (stream, from) = listener.accept().context("cannot accept a transfer connection")?;
        thread::spawn(move || match transfer(stream) {
            Ok(done) => report(&format!("transfer with {from}: {done}")),
            Err(error) => report(&format!("transfer with {from} failed: {error:#}")),
        });
    }
}

/// Serves one connection and says what was done.
pub fn transfer(stream: TcpStream) -> Result<String> {
    let mut reader = BufReader::new(stream.try_clone().context("cannot duplicate the socket")?);
    let mut line = String::new();
    reader.by_ref().take(64).read_line(&mut line).context("cannot read the request")?;
    let mut writer = stream;
    match Request::parse(&line)? {
        Request::Get(len) => {
            payload::write(len, &mut writer).context("cannot send the payload")?;
            Ok(format!("sent {len} bytes"))
        }
        Request::Put(len) => {
            let hash = sha256(|out| copy_exactly(&mut reader, len, out))?;
            writeln!(writer, "{hash}").context("cannot send the hash")?;
            Ok(format!("received {len} bytes, sha256 {hash}"))
        }
    }
}

#[derive(Debug, PartialEq)]
enum Request {
    Get(u64),
    Put(u64),
}

impl Request {
    fn parse(line: &str) -> Result<Self> {
        let mut words = line.split_whitespace();
        let (verb, len) = (words.next(), words.next().and_then(|word| word.parse().ok()));
        match (verb, len, words.next()) {
            (Some("GET"), Some(len), None) => Ok(Self::Get(len)),
            (Some("PUT"), Some(len), None) => Ok(Self::Put(len)),
            _ => bail!("not a request: {line:?}"),
        }
    }
}

fn copy_exactly(from: &mut impl io::Read, len: u64, to: &mut dyn io::Write) -> io::Result<()> {
    let copied = io::copy(&mut from.take(len), to)?;
    if copied < len {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("{copied} of {len} bytes came"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;

    use super::*;

    fn ask(request: &[u8]) -> (Vec<u8>, Result<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(request).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let done = transfer(listener.accept().unwrap().0);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        (answer, done)
    }

    #[test]
    fn get_answers_with_the_payload() {
        let (answer, done) = ask(b"GET 1000\n");
        let mut expected = Vec::new();
        payload::write(1000, &mut expected).unwrap();
        assert_eq!(answer, expected);
        assert_eq!(done.unwrap(), "sent 1000 bytes");
    }

    #[test]
    fn put_answers_with_the_hash() {
        let (answer, _) = ask(b"PUT 3\nabc");
        assert!(answer.starts_with(b"ba7816bf8f01cfea"));
    }

    #[test]
    fn a_short_put_is_an_error_and_gets_no_hash() {
        let (answer, done) = ask(b"PUT 4\nabc");
        assert!(answer.is_empty());
        assert!(format!("{:#}", done.unwrap_err()).contains("3 of 4 bytes came"));
    }

    #[test]
    fn other_requests_are_refused() {
        for line in ["", "GET", "GET x", "PUT -1", "GET 1 2", "HEAD 1"] {
            assert!(Request::parse(line).is_err(), "{line}");
        }
    }
}
