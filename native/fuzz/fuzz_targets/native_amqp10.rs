#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sluice_native_fuzz::amqp10::run(data));
