//! How two processes prove to each other that they know one secret.
//!
//! The one that connects sends a nonce, the other answers with its own, and each then sends a keyed
//! hash (HMAC-SHA256) of both nonces and of its role: first the one that connects, so that nobody
//! learns a hash without knowing the secret. Nothing else is read before. The nonces make a replay
//! useless, the roles make a reflection useless. It keeps strangers out; it does not encrypt.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use super::identity;
use crate::Result;

/// What a connection starts with, in every version.
pub(super) const MAGIC: [u8; 8] = *b"mscclrs\n";
pub(super) const NONCE: usize = 32;
pub(super) const PROOF: usize = 32;

/// What the ranks of a group share and nobody else knows. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// The secret of a text or of bytes.
    pub fn new(text: impl AsRef<[u8]>) -> Secret {
        let mut sha = Sha256::new();
        sha.update(b"mscclrs secret\0");
        sha.update(text);
        Secret(sha.finalize().into())
    }

    pub(super) fn prove(&self, role: Role, nonces: &Nonces) -> [u8; PROOF] {
        self.mac(role, nonces).map(|mac| mac.finalize().into_bytes().into()).unwrap_or_default()
    }

    /// In constant time.
    pub(super) fn verify(&self, role: Role, nonces: &Nonces, proof: &[u8]) -> bool {
        self.mac(role, nonces).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }

    fn mac(&self, role: Role, nonces: &Nonces) -> Option<Hmac<Sha256>> {
        // A key of any length is allowed, so this is always there.
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&self.0).ok()?;
        mac.update(&MAGIC);
        mac.update(role.name());
        mac.update(&nonces.connecting);
        mac.update(&nonces.accepting);
        Some(mac)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Who proves.
#[derive(Clone, Copy)]
pub(super) enum Role {
    Accepting,
    Connecting,
}

impl Role {
    fn name(self) -> &'static [u8] {
        match self {
            Role::Accepting => b"accepting",
            Role::Connecting => b"connecting",
        }
    }
}

/// What was drawn for one connection.
pub(super) struct Nonces {
    pub(super) connecting: [u8; NONCE],
    pub(super) accepting: [u8; NONCE],
}

pub(super) fn nonce() -> Result<[u8; NONCE]> {
    identity::random()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_secret_role_and_nonces_only() {
        let nonces = Nonces { connecting: [1; 32], accepting: [2; 32] };
        let secret = Secret::new("a");
        let proof = secret.prove(Role::Connecting, &nonces);
        assert!(secret.verify(Role::Connecting, &nonces, &proof));
        assert!(!secret.verify(Role::Accepting, &nonces, &proof));
        assert!(!Secret::new("b").verify(Role::Connecting, &nonces, &proof));
        let swapped = Nonces { connecting: [2; 32], accepting: [1; 32] };
        assert!(!secret.verify(Role::Connecting, &swapped, &proof));
        assert!(!secret.verify(Role::Connecting, &nonces, &proof[..31]));
        assert!(!secret.verify(Role::Connecting, &nonces, &[]));
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}
