//! A whole driver in one page: of QEMU's `edu` device (its `docs/specs/edu.rst`), which can be told to do
//! DMA and to raise interrupts. It proves the way through the kernel's VFIO and an IOMMU:
//!
//! ```text
//! edu 0000:01:00.0
//! ```
//!
//! Prints a line for each step; exit code 1 at the first that does not work.

#![expect(clippy::print_stdout, reason = "what was tried is what this program is for")]

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use pci::{Bar, EventFd, Iova};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

// Registers of BAR 0.
const IDENTIFICATION: u32 = 0x00;
const LIVENESS: u32 = 0x04;
const INTERRUPT_STATUS: u32 = 0x24;
const INTERRUPT_RAISE: u32 = 0x60;
const INTERRUPT_ACKNOWLEDGE: u32 = 0x64;
const DMA_SOURCE: u32 = 0x80;
const DMA_DESTINATION: u32 = 0x88;
const DMA_COUNT: u32 = 0x90;
const DMA_COMMAND: u32 = 0x98;
/// The device's own memory, as its DMA engine sees it.
const BUFFER: u64 = 0x4_0000;
const RUN: u32 = 1;
const FROM_DEVICE: u32 = 2;
const INTERRUPT_AFTER: u32 = 4;
const PAGE: usize = 4096;
/// Bytes per transfer: QEMU 7.2 ends the machine when they are as many as the device's memory has.
const BYTES: usize = PAGE / 2;
/// Addresses of our choice: the device reaches 28 bits.
const OUT: Iova = Iova::new(0x0123_4000);
const BACK: Iova = Iova::new(0x0765_4000);

fn main() -> ExitCode {
    let Some(address) = std::env::args().nth(1) else {
        println!("usage: edu ADDRESS");
        return ExitCode::from(2);
    };
    match run(&address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("E2E failed: {error}{}", causes(error.source()));
            ExitCode::FAILURE
        }
    }
}

fn causes(mut error: Option<&dyn std::error::Error>) -> String {
    let mut text = String::new();
    while let Some(cause) = error {
        text = format!("{text}: {cause}");
        error = cause.source();
    }
    text
}

fn run(address: &str) -> Result<()> {
    let mut function = pci::open(address)?;
    let (vendor, device) = function.ids()?;
    check((vendor, device) == (0x1234, 0x11e8), "it is an edu")?;
    function.enable()?;
    let bar = function.bar(0)?;
    println!("E2E opened mapped={} as {function:?}", bar.is_mapped());
    alive(&bar)?;

    let file = File::from(memfd_create("edu", MemfdFlags::CLOEXEC)?);
    ftruncate(&file, 2 * PAGE as u64)?;
    let pattern: Vec<u8> = (0..=250).cycle().take(PAGE).collect();
    file.write_all_at(&pattern, 0)?;
    let out = function.map_guest(OUT, file.as_fd(), 0, PAGE)?;
    let back = function.map_guest(BACK, file.as_fd(), PAGE as u64, PAGE)?;
    check(function.map_guest(OUT, file.as_fd(), 0, PAGE).is_err(), "an address is taken once")?;
    transfer(&bar, OUT.get(), BUFFER, RUN)?;
    transfer(&bar, BUFFER, BACK.get(), RUN | FROM_DEVICE)?;
    let mut copy = vec![0; PAGE];
    back.copy_out(0, &mut copy);
    check(copy[..BYTES] == pattern[..BYTES], "what went to the device came back")?;
    println!("E2E dma bytes={BYTES}");

    let own = function.dma(3 << 20, PAGE)?;
    println!("E2E allocated iova={:#x}", own.iova().get());
    drop(own);

    let interrupts = function.interrupts(1)?;
    check(function.interrupts(2).is_err(), "the device has one vector")?;
    let interrupts = if interrupts.is_empty() { interrupts } else { function.interrupts(1)? };
    bar.write32(INTERRUPT_RAISE, 1);
    wait(&interrupts[0], &bar)?;
    transfer(&bar, OUT.get(), BUFFER, RUN | INTERRUPT_AFTER)?;
    wait(&interrupts[0], &bar)?;
    println!("E2E interrupts count=2");

    // Taken away: the device must not reach the memory any more, though the file still has it.
    drop(back);
    file.write_all_at(&[0xee; PAGE], PAGE as u64)?;
    transfer(&bar, BUFFER, BACK.get(), RUN | FROM_DEVICE)?;
    file.read_exact_at(&mut copy, PAGE as u64)?;
    check(copy == [0xee; PAGE], "memory that was taken away is out of reach")?;
    println!("E2E unmapped");

    function.reset()?;
    function.enable()?;
    alive(&bar)?;
    transfer(&bar, OUT.get(), BUFFER, RUN)?;
    println!("E2E reset");
    drop(out);
    Ok(())
}

fn check(is: bool, what: &str) -> Result<()> {
    if is { Ok(()) } else { Err(format!("not true: {what}").into()) }
}

fn alive(bar: &Bar) -> Result<()> {
    check(bar.read32(IDENTIFICATION) & 0xff == 0xed, "the device identifies itself")?;
    bar.write32(LIVENESS, 0x1234_5678);
    check(bar.read32(LIVENESS) == !0x1234_5678, "the device answers")
}

fn transfer(bar: &Bar, from: u64, to: u64, command: u32) -> Result<()> {
    bar.write64(DMA_SOURCE, from);
    bar.write64(DMA_DESTINATION, to);
    bar.write64(DMA_COUNT, BYTES as u64);
    bar.write64(DMA_COMMAND, command.into());
    for _ in 0..1000 {
        if bar.read32(DMA_COMMAND) & RUN == 0 {
            return Ok(());
        }
        sleep(Duration::from_millis(10));
    }
    Err("the device does not finish its DMA".into())
}

fn wait(interrupt: &EventFd, bar: &Bar) -> Result<()> {
    for _ in 0..500 {
        if interrupt.read().is_ok() {
            bar.write32(INTERRUPT_ACKNOWLEDGE, bar.read32(INTERRUPT_STATUS));
            return Ok(());
        }
        sleep(Duration::from_millis(10));
    }
    Err("no interrupt".into())
}
