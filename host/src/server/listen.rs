//! The listening socket and the process's open-file limit.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use tokio::net::{TcpListener, TcpSocket};

use super::ServeError;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;
/// Tried in this order where the hard limit is no limit.
const UNLIMITED_OPEN_FILES: [u64; 2] = [65_536, 10_240];

/// An address that is ours and does not answer yet: clients are turned away
/// until [`listen`](Self::listen).
pub(super) struct BoundAddress {
    socket: TcpSocket,
    host: String,
    address: SocketAddr,
}

impl BoundAddress {
    /// Takes the first address of `host` that can be had.
    pub(super) fn bind(host: &str, port: u16) -> Result<BoundAddress, ServeError> {
        let addresses = (host.trim_matches(['[', ']']), port)
            .to_socket_addrs()
            .map_err(|error| ServeError::Host { host: host.to_owned(), error })?;
        let mut last = None;
        for address in addresses {
            match bind(address) {
                Ok(socket) => {
                    let address = socket.local_addr().unwrap_or(address);
                    return Ok(BoundAddress { socket, host: host.to_owned(), address });
                }
                Err(error) => last = Some(error),
            }
        }
        let error = last.unwrap_or_else(|| io::Error::other("the name has no address"));
        Err(match error.kind() {
            io::ErrorKind::AddrInUse => ServeError::PortInUse { host: host.to_owned(), port },
            io::ErrorKind::AddrNotAvailable => ServeError::Host { host: host.to_owned(), error },
            _ => ServeError::Bind { host: host.to_owned(), port, error },
        })
    }

    /// Begins to answer. Needs a runtime.
    pub(super) fn listen(self) -> Result<TcpListener, ServeError> {
        let (host, port) = (self.host, self.address.port());
        self.socket.listen(BACKLOG).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => ServeError::PortInUse { host, port },
            _ => ServeError::Bind { host, port, error },
        })
    }

    /// `HOST:PORT` as it stands in an address, with the host as it was given
    /// and the real port.
    pub(super) fn authority(&self) -> String {
        let host = self.host.trim_matches(['[', ']']);
        let port = self.address.port();
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Whether only this machine can reach the address.
    pub(super) fn is_loopback(&self) -> bool {
        match self.address.ip() {
            IpAddr::V4(address) => address.is_loopback(),
            IpAddr::V6(address) => {
                address.is_loopback() || address.to_ipv4_mapped().is_some_and(|address| address.is_loopback())
            }
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted server gets its port back while old connections fade away.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Raises the soft limit of open files to the hard one, as each connection
/// takes a file. The new limit when it was raised.
pub(super) fn raise_open_file_limit() -> io::Result<Option<u64>> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit that outlives the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    for wanted in wanted_open_files(limit.rlim_cur, limit.rlim_max) {
        let raised = libc::rlimit { rlim_cur: wanted, rlim_max: limit.rlim_max };
        // SAFETY: `raised` is a valid rlimit that outlives the call; raising
        // the soft limit within the hard one changes nothing else.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) } == 0 {
            return Ok(Some(wanted));
        }
    }
    Ok(None)
}

/// Soft limits worth trying, best first; none where the present one is as good.
fn wanted_open_files(soft: u64, hard: u64) -> Vec<u64> {
    if hard == libc::RLIM_INFINITY {
        UNLIMITED_OPEN_FILES.into_iter().filter(|&wanted| wanted > soft).collect()
    } else if soft < hard {
        vec![hard]
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_goes_to_the_hard_one_and_never_down() {
        assert_eq!(wanted_open_files(1024, 4096), [4096]);
        assert!(wanted_open_files(4096, 4096).is_empty());
        assert_eq!(wanted_open_files(1024, libc::RLIM_INFINITY), [65_536, 10_240]);
        assert_eq!(wanted_open_files(20_000, libc::RLIM_INFINITY), [65_536]);
        assert!(wanted_open_files(libc::RLIM_INFINITY, libc::RLIM_INFINITY).is_empty());
    }

    #[tokio::test]
    async fn port_0_takes_a_free_port_and_names_it() {
        let bound = BoundAddress::bind("127.0.0.1", 0).unwrap();
        let authority = bound.authority();
        assert!(bound.is_loopback());
        let listener = bound.listen().unwrap();
        assert_eq!(authority, listener.local_addr().unwrap().to_string());
        assert_ne!(listener.local_addr().unwrap().port(), 0);
    }

    #[tokio::test]
    async fn a_taken_port_is_refused_before_anything_else() {
        let taken = BoundAddress::bind("127.0.0.1", 0).unwrap().listen().unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = BoundAddress::bind("127.0.0.1", port).err().unwrap().to_string();
        assert_eq!(
            error,
            format!(
                "port {port} on 127.0.0.1 is already in use; stop the other program or choose another port with --port"
            )
        );
    }

    #[test]
    fn an_address_that_is_not_ours_is_refused_by_name() {
        let error = BoundAddress::bind("203.0.113.9", 0).err().unwrap().to_string();
        assert!(error.starts_with("--host 203.0.113.9: "), "{error}");
        let error = BoundAddress::bind("no such host", 0).err().unwrap().to_string();
        assert!(error.starts_with("--host no such host: "), "{error}");
    }
}
