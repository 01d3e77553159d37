//! The target on which a job's tools run: this host, another host, a container or a pod.

/// The target on which the programs of a job's tools run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ExecutionTarget {
    #[default]
    Local,
    /// Another host, through OpenSSH; the value is the destination argument of `ssh`.
    Ssh(String),
    /// A running container, by name or id.
    Docker(String),
    /// The first container of a running pod.
    Kubernetes {
        /// The namespace of the pod.
        namespace: String,
        /// The name of the pod.
        pod: String,
    },
}

impl ExecutionTarget {
    /// Parses the value of `environment` in a job.
    ///
    /// *Errors*: a message for the configuration report.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        // The name becomes an argument of a client such as `ssh`, which would read a leading dash
        // as an option.
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                && name
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@'))
        };
        let named = |name: &str| is_name(name).then(|| name.to_owned());
        let place = match text.split_once(':') {
            None if text == "local" => Some(Self::Local),
            Some(("ssh", host)) => named(host).map(Self::Ssh),
            Some(("docker", container)) => named(container).map(Self::Docker),
            Some(("kubernetes", rest)) => rest.split_once('/').and_then(|(namespace, pod)| {
                Some(Self::Kubernetes { namespace: named(namespace)?, pod: named(pod)? })
            }),
            _ => None,
        };
        place.ok_or_else(|| {
            format!(
                "`{text}` is not an environment: write local, ssh:HOST, docker:CONTAINER or kubernetes:NAMESPACE/POD"
            )
        })
    }

    /// Tells whether the target is this host.
    #[must_use]
    pub fn is_local(&self) -> bool {
        *self == Self::Local
    }
}

impl std::fmt::Display for ExecutionTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Ssh(host) => write!(f, "ssh:{host}"),
            Self::Docker(container) => write!(f, "docker:{container}"),
            Self::Kubernetes { namespace, pod } => write!(f, "kubernetes:{namespace}/{pod}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_written() {
        for text in [
            "local",
            "ssh:web1",
            "ssh:ops@web1.example.org",
            "docker:shop_db-1",
            "kubernetes:shop/web-0",
        ] {
            assert_eq!(ExecutionTarget::parse(text).unwrap().to_string(), text);
        }
        for text in [
            "",
            "ssh",
            "ssh:",
            "ssh:-oProxyCommand=x",
            "ssh:a b",
            "ssh:a;b",
            "docker:--privileged",
            "kubernetes:shop",
            "kubernetes:shop/-x",
            "kubernetes:/x",
            "vm:x",
            "Local",
        ] {
            assert!(ExecutionTarget::parse(text).is_err(), "{text}");
        }
    }
}
