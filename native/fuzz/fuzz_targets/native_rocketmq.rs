#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_native_fuzz::rocketmq::run(data));
