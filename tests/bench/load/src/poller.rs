//! Waiting for sockets: epoll, level-triggered, with timeouts finer than a millisecond.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Interest {
    Read,
    Write,
    Both,
}

#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub token: usize,
    pub readable: bool,
    pub writable: bool,
}

pub struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            epoll,
            events: Vec::with_capacity(1024),
        })
    }

    pub fn add(&self, source: impl AsFd, token: usize, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, source, data(token), flags(interest))?)
    }

    pub fn modify(&self, source: impl AsFd, token: usize, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, source, data(token), flags(interest))?)
    }

    /// Wait up to `timeout` and fill `ready`.
    pub fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Duration) -> io::Result<()> {
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        ready.clear();
        ready.extend(self.events.iter().map(|event| {
            let flags = event.flags;
            let over = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            Ready {
                token: usize::try_from(event.data.u64()).expect("tokens are usize"),
                readable: over || flags.contains(epoll::EventFlags::IN),
                writable: over || flags.contains(epoll::EventFlags::OUT),
            }
        }));
        Ok(())
    }
}

fn data(token: usize) -> epoll::EventData {
    epoll::EventData::new_u64(token as u64)
}

fn flags(interest: Interest) -> epoll::EventFlags {
    match interest {
        Interest::Read => epoll::EventFlags::IN,
        Interest::Write => epoll::EventFlags::OUT,
        Interest::Both => epoll::EventFlags::IN | epoll::EventFlags::OUT,
    }
}
