//! Certificate authorities for tests, and the settings with which nodes show and trust certificates.

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};

/// A certificate authority, and a certificate of `localhost` signed by it, in a folder.
pub struct Authority {
    folder: tempfile::TempDir,
    /// The authority's own certificate, and its key.
    issuer: (CertificateParams, KeyPair),
}

impl Authority {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().unwrap();
        std::fs::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        let authority = Self { folder, issuer: (params, key) };
        authority.issue_for("node", ["localhost".to_owned()], false);
        authority
    }

    /// Writes a certificate `NAME.pem` of these hosts and its key `NAME.key`.
    pub fn issue_for(&self, name: &str, hosts: impl IntoIterator<Item = String>, expired: bool) {
        let mut params = CertificateParams::new(hosts.into_iter().collect::<Vec<_>>()).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if expired {
            params.not_after = date_time_ymd(2000, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::from_params(&self.issuer.0, &self.issuer.1);
        let pem = params.signed_by(&key, &issuer).unwrap().pem();
        std::fs::write(self.folder.path().join(format!("{name}.pem")), pem).unwrap();
        std::fs::write(self.folder.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    pub fn path(&self, file: &str) -> String {
        self.folder.path().join(file).display().to_string()
    }

    /// Returns the settings of mutual TLS with the certificate `NAME.pem`, below `transport/link/tls`.
    #[allow(dead_code)]
    pub fn mutual(&self, name: &str, trusts: &Self) -> serde_json::Value {
        let [certificate, key] = ["pem", "key"].map(|ending| self.path(&format!("{name}.{ending}")));
        serde_json::json!({
            "root_ca_certificate": trusts.path("ca.pem"),
            "listen_certificate": certificate,
            "listen_private_key": key,
            "connect_certificate": certificate,
            "connect_private_key": key,
            "enable_mtls": true,
        })
    }
}
