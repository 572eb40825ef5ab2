//! Selection of the producer and the consumer of each kind of contender.

use super::contender::{Kind, Prepared};
use super::{copy, fresh, serialize};
use crate::BaselineError;

/// Prepares the producer's side of an exchange, before the caller starts the consumer.
pub fn prepare(kind: Kind, bytes: usize) -> Result<Prepared, BaselineError> {
    let mut prepared = match (kind, kind.message()) {
        (_, Some((codec, carrier))) => serialize::prepare(codec, carrier, bytes),
        (Kind::Fresh, _) => fresh::prepare(bytes),
        _ => copy::prepare(bytes),
    }?;
    prepared.args.insert(0, kind.name().to_owned());
    Ok(prepared)
}

/// Runs the consumer for a producer that [`prepare`] made.
pub fn serve(args: &[String]) -> Result<(), BaselineError> {
    let (kind, rest) = parse(args)?;
    match (kind, kind.message()) {
        (_, Some((codec, carrier))) => serialize::serve(codec, carrier, rest),
        (Kind::Fresh, _) => fresh::serve(rest),
        _ => copy::serve(rest),
    }
}

/// Parses the consumer's arguments. Returns the kind, and the arguments of this kind.
fn parse(args: &[String]) -> Result<(Kind, &[String]), BaselineError> {
    let kind = |name: &String| Kind::ALL.into_iter().find(|kind| kind.name() == name);
    match args.split_first() {
        Some((name, rest)) => kind(name).map(|kind| (kind, rest)),
        None => None,
    }
    .ok_or_else(|| BaselineError::Arguments(args.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::{Kind, parse};

    #[test]
    fn the_first_argument_is_the_kind() {
        for kind in Kind::ALL {
            let args = [kind.to_string(), "x".to_owned()];
            assert_eq!(parse(&args).unwrap(), (kind, &args[1..]));
        }
        assert!(parse(&[]).is_err());
        assert!(parse(&["lend".to_owned()]).unwrap_err().to_string().contains("lend"));
    }
}
