//! The sink's counters, and their side channel: one byte in, one line of numbers out.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::set_socket_send_buffer_size;

/// The kernel's default of 4 MiB per connection takes a slow proxy a long time.
const SEND_BUFFER_BYTES: usize = 256 << 10;

/// Totals since the sink started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// The sink's clock, nanoseconds.
    pub at_ns: u64,
    pub frames: u64,
    pub bytes: u64,
    pub answered: u64,
    /// Connections so far.
    pub accepted: u64,
    pub connections: u64,
    /// Connections with invalid framing, or that ended inside a frame.
    pub broken: u64,
}

impl Counters {
    pub fn to_line(self) -> String {
        format!(
            "{} {} {} {} {} {} {}\n",
            self.at_ns, self.frames, self.bytes, self.answered, self.accepted, self.connections, self.broken
        )
    }

    pub fn from_line(line: &str) -> Option<Self> {
        let numbers: Vec<u64> = line
            .split_whitespace()
            .map(|word| word.parse().ok())
            .collect::<Option<_>>()?;
        let [at_ns, frames, bytes, answered, accepted, connections, broken] = numbers.try_into().ok()?;
        Some(Self {
            at_ns,
            frames,
            bytes,
            answered,
            accepted,
            connections,
            broken,
        })
    }
}

pub struct Control {
    lines: BufReader<TcpStream>,
}

impl Control {
    pub fn connect(address: SocketAddr) -> Result<Self, String> {
        let stream = connect(address)?;
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .map_err(|error| error.to_string())?;
        Ok(Self {
            lines: BufReader::new(stream),
        })
    }

    pub fn counters(&mut self) -> Result<Counters, String> {
        let mut line = String::new();
        self.lines
            .get_mut()
            .write_all(b"?")
            .and_then(|()| self.lines.read_line(&mut line))
            .map_err(|error| format!("the sink did not say its counters: {error}"))?;
        Counters::from_line(&line).ok_or_else(|| format!("the sink said {line:?}"))
    }
}

/// Connect without Nagle's algorithm and with a bounded send buffer.
pub fn connect(address: SocketAddr) -> Result<TcpStream, String> {
    TcpStream::connect_timeout(&address, Duration::from_secs(5))
        .and_then(|stream| {
            stream.set_nodelay(true)?;
            set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES)?;
            Ok(stream)
        })
        .map_err(|error| format!("cannot connect to {address}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_survive_the_line() {
        let counters = Counters {
            at_ns: 1,
            frames: 2,
            bytes: 3,
            answered: 4,
            accepted: 6,
            connections: 5,
            broken: u64::MAX,
        };
        assert_eq!(Counters::from_line(&counters.to_line()), Some(counters));
    }

    #[test]
    fn other_lines_are_refused() {
        for line in ["", "1 2 3", "1 2 3 4 5 6 x", "1 2 3 4 5 6 7 8"] {
            assert_eq!(Counters::from_line(line), None);
        }
    }
}
