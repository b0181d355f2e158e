//! How messages travel: ONC RPC connections over TCP and a simulated network.
