//! Ports on real interfaces: veth pairs and taps in network namespaces made for the test.
//!
//! Needs root; without it each test says so and ends. Nothing outside its own namespaces is touched.

#[cfg(test)]
mod frames;
#[cfg(test)]
mod netns;
#[cfg(test)]
mod packet_socket;
#[cfg(test)]
mod relay;
#[cfg(test)]
mod tap;
