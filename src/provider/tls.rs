//! Says in words why the certificate of a server is not accepted (PROV-6).

use std::error::Error;
use std::io;

use rustls::CertificateError;

/// The error of webpki for a CA certificate that a server presents as its own. rustls wraps it and
/// does not export its type, so only its name tells it apart.
const CA_AS_SERVER: &str = "CaUsedAsEndEntity";

/// Returns the message if `error` says that the certificate of the server is not accepted.
pub(super) fn refusal(error: &(dyn Error + 'static)) -> Option<String> {
    let mut causes = std::iter::successors(Some(error), |error| cause(*error));
    causes.find_map(|error| match error.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(why) => Some(words(why)),
        rustls::Error::NoCertificatesPresented => {
            Some("the server presents no certificate".to_owned())
        }
        _ => None,
    })
}

/// Returns the cause of an error. An I/O error does not count the error that it wraps as one.
fn cause<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

fn words(why: &CertificateError) -> String {
    let text = match why {
        CertificateError::UnknownIssuer => {
            "the certificate of the server is signed by a CA that this host does not trust: add the CA to the certificates of the host, or name a file with it in SSL_CERT_FILE in the environment of dutyd"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the certificate of the server has expired"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate of the server is not valid yet: check the clock of this host"
        }
        CertificateError::NotValidForNameContext { expected, .. } => {
            return format!(
                "the certificate of the server is not for `{}`: use a name in `base_url` that the certificate lists",
                expected.to_str()
            );
        }
        CertificateError::Other(other) if other.to_string() == CA_AS_SERVER => {
            "the certificate of the server is one of a CA: make one for the server, with basicConstraints=CA:FALSE"
        }
        CertificateError::Other(other) => {
            return format!("the certificate of the server is not valid: {other}");
        }
        other => return format!("the certificate of the server is not valid: {other}"),
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves PROV-6
    #[test]
    fn a_certificate_error_is_found_below_other_errors() {
        let refused = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let wrapped = io::Error::other(io::Error::other(refused));
        assert!(refusal(&wrapped).unwrap().contains("SSL_CERT_FILE"));
        assert_eq!(refusal(&io::Error::other("certificate")), None);
    }
}
