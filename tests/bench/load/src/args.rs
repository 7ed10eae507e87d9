//! Command line: `--key value` pairs and bare `--flags`, taken out one by one, so that the rest is an error.

use std::collections::HashMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use crate::frames::{Header, Shape};

const FLAGS: [&str; 5] = ["swallow", "one-at-a-time", "memory", "known-topics", "settled"];

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Protocol {
    RocketMq,
    Amqp091,
    Amqp10,
}

#[derive(Debug)]
pub struct Args(HashMap<String, String>);

impl Args {
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut given = HashMap::new();
        let mut words = words;
        while let Some(word) = words.next() {
            let key = word
                .strip_prefix("--")
                .ok_or_else(|| format!("{word:?} is no option"))?
                .to_owned();
            let value = if FLAGS.contains(&key.as_str()) {
                String::new()
            } else {
                words.next().ok_or_else(|| format!("--{key} needs a value"))?
            };
            given.insert(key, value);
        }
        Ok(Self(given))
    }

    pub fn optional<T: FromStr<Err: Display>>(&mut self, key: &str) -> Result<Option<T>, String> {
        self.0
            .remove(key)
            .map(|text| text.parse().map_err(|error| format!("--{key} {text}: {error}")))
            .transpose()
    }

    pub fn required<T: FromStr<Err: Display>>(&mut self, key: &str) -> Result<T, String> {
        self.optional(key)?.ok_or_else(|| format!("--{key} is missing"))
    }

    pub fn flag(&mut self, key: &str) -> bool {
        self.0.remove(key).is_some()
    }

    /// In seconds.
    pub fn seconds(&mut self, key: &str, default: f64) -> Result<Duration, String> {
        let seconds = self.optional(key)?.unwrap_or(default);
        Duration::try_from_secs_f64(seconds).map_err(|error| format!("--{key} {seconds}: {error}"))
    }

    pub fn protocol(&mut self) -> Result<Protocol, String> {
        match self.optional::<String>("protocol")?.as_deref() {
            None | Some("rocketmq") => Ok(Protocol::RocketMq),
            Some("amqp091") => Ok(Protocol::Amqp091),
            Some("amqp10") => Ok(Protocol::Amqp10),
            Some(other) => Err(format!("--protocol {other}: must be rocketmq, amqp091 or amqp10")),
        }
    }

    pub fn shape(&mut self) -> Result<Shape, String> {
        let header = match self.optional::<String>("header")?.as_deref() {
            None | Some("json") => Header::Json,
            Some("binary") => Header::Binary,
            Some(other) => return Err(format!("--header {other}: must be json or binary")),
        };
        Shape::new(
            self.optional("size")?.unwrap_or(536),
            header,
            self.optional("topics")?.unwrap_or(1),
        )
    }

    /// Fail if an option is left.
    pub fn finish(self) -> Result<(), String> {
        match self.0.keys().min() {
            None => Ok(()),
            Some(key) => Err(format!("--{key} is not an option of this mode")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        Args::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn values_flags_and_defaults_are_read() {
        let mut args = parse("--swallow --rate 500 --seconds 0.5").unwrap();
        assert!(args.flag("swallow"));
        assert!(!args.flag("one-at-a-time"));
        assert_eq!(args.required::<u32>("rate"), Ok(500));
        assert_eq!(args.seconds("seconds", 3.0), Ok(Duration::from_millis(500)));
        assert_eq!(args.seconds("warmup", 1.0), Ok(Duration::from_secs(1)));
        assert_eq!(args.finish(), Ok(()));
    }

    #[test]
    fn mistakes_name_the_option() {
        assert!(parse("rate 5").unwrap_err().contains("\"rate\""));
        assert!(parse("--rate").unwrap_err().contains("--rate"));
        let mut args = parse("--rate fast --extra 1").unwrap();
        assert!(args.required::<u32>("rate").unwrap_err().starts_with("--rate fast"));
        assert!(args.required::<u32>("rate").unwrap_err().contains("missing"));
        assert!(args.finish().unwrap_err().contains("--extra"));
        assert!(parse("--header xml").unwrap().shape().unwrap_err().contains("xml"));
        assert!(
            parse("--protocol mqtt")
                .unwrap()
                .protocol()
                .unwrap_err()
                .contains("mqtt")
        );
        assert!(parse("--seconds -1").unwrap().seconds("seconds", 1.0).is_err());
    }
}
