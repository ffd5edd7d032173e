//! As much of an HTTP/1.1 server (RFC 9112) as a boot loader needs: GET of two documents.
//!
//! - `/boot.ipxe`: a script that fetches the payload, shows its size and prints [`TOKEN`].
//! - `/payload`: [`PAYLOAD_BYTES`] of payload.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread,
};

use anyhow::{Context as _, Result, bail};

use super::{HTTP_PORT, PEER_V4};
use crate::payload;

/// What the boot script prints when all of it went well.
pub const TOKEN: &str = "payload-is-here";
/// The length of `/payload`.
pub const PAYLOAD_BYTES: u64 = 2 * 1024 * 1024;

/// Serves for ever, each answer reported through `report`.
pub fn serve(listener: &TcpListener, report: fn(&str)) -> Result<()> {
    loop {
        let (stream, from) = listener.accept().context("cannot accept an HTTP connection")?;
        thread::spawn(move || match answer(stream) {
            Ok(done) => report(&format!("http with {from}: {done}")),
            Err(error) => report(&format!("http with {from} failed: {error:#}")),
        });
    }
}

/// Answers one request, closes the connection, and says what was done.
pub fn answer(stream: TcpStream) -> Result<String> {
    let mut reader = BufReader::new(stream.try_clone().context("cannot duplicate the socket")?)
        .take(MAX_REQUEST_BYTES);
    let mut request = String::new();
    reader.read_line(&mut request).context("cannot read the request")?;
    let mut header = String::from("-");
    while !header.trim_end().is_empty() {
        header.clear();
        reader.read_line(&mut header).context("cannot read the request's header")?;
    }
    let Some(path) = request.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) else {
        bail!("not a GET: {request:?}");
    };
    let mut body = Vec::new();
    let status = match path {
        "/boot.ipxe" => {
            body.extend_from_slice(boot_script().as_bytes());
            "200 OK"
        }
        "/payload" => {
            payload::write(PAYLOAD_BYTES, &mut body).context("cannot make the payload")?;
            "200 OK"
        }
        _ => "404 Not Found",
    };
    let mut writer = stream;
    let len = body.len();
    write!(writer, "HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n")
        .and_then(|()| writer.write_all(&body))
        .context("cannot send the answer")?;
    Ok(format!("{status}, sent all {len} bytes of {path}"))
}

fn boot_script() -> String {
    format!(
        "#!ipxe\n\
         imgfetch --name payload http://{PEER_V4}:{HTTP_PORT}/payload || goto bad\n\
         imgstat\n\
         echo {TOKEN}\n\
         goto end\n\
         :bad\n\
         echo payload-did-not-arrive ${{errno}}\n\
         :end\n\
         sleep 60\n"
    )
}

const MAX_REQUEST_BYTES: u64 = 8 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> Vec<u8> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        write!(client, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let server = thread::spawn(move || answer(listener.accept().unwrap().0));
        let mut text = Vec::new();
        client.read_to_end(&mut text).unwrap();
        server.join().unwrap().unwrap();
        text
    }

    #[test]
    fn the_script_fetches_the_payload() {
        let text = String::from_utf8(get("/boot.ipxe")).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("\r\n\r\n#!ipxe\nimgfetch"), "{text}");
    }

    #[test]
    fn the_payload_is_complete() {
        let answer = get("/payload");
        let body = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        assert_eq!((answer.len() - body) as u64, PAYLOAD_BYTES);
    }

    #[test]
    fn other_paths_are_not_found() {
        assert!(get("/x").starts_with(b"HTTP/1.1 404"));
    }
}
