use std::fs;
use std::path::Path;

fn try_all(name: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus").join(name);
    let mut tried = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        run(&fs::read(path).unwrap());
        tried += 1;
    }
    assert!(tried > 0);
}

#[test]
fn rocketmq() {
    try_all("native_rocketmq", sluice_native_fuzz::rocketmq::run);
}

#[test]
fn amqp091() {
    try_all("native_amqp091", sluice_native_fuzz::amqp091::run);
}

#[test]
fn amqp10() {
    try_all("native_amqp10", sluice_native_fuzz::amqp10::run);
}
