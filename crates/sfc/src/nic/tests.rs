use pci::fake::Fake;

use super::*;
use crate::card::{Answer, Card, Done, TestClock};
use crate::filter::{Filter, Wanted};
use crate::moderation::Timer;
use crate::rss;

fn settings() -> Settings {
    Settings {
        pairs: 1,
        rx_entries: 512,
        tx_entries: 512,
        mtu: 1500,
        addresses: Vec::new(),
        wanted: Wanted { promiscuous: true, all_multicast: true },
        key: [1; rss::KEY_BYTES],
        spread: Vec::new(),
        moderation_ns: 0,
    }
}

fn open(function: Fake) -> Result<Nic, Error> {
    Nic::open(Box::new(function), Box::new(TestClock::default()))
}

fn start(nic: &mut Nic, settings: &Settings) -> Result<Vec<Pair>, Error> {
    let (_, memory) = nic.packet_memory(1 << 16)?;
    nic.start(settings, memory)
}

const EPERM: Answer = Answer::Error(1);
const ENOSPC: Answer = Answer::Error(0x1c);
const ENTITY_RESET: u16 = 0x20;

#[test]
fn the_order_of_the_bring_up() {
    let card = Card::working();
    let mut nic = open(card.function()).unwrap();
    let probe = [0x6, 0x1c, 0x20, 0x7, 0xbe, 0x59, 0x8, 0xec, 0xb8, 0x55, 0x122, 0xc2, 0x24];
    assert_eq!(card.take_commands(), probe);
    assert_eq!(nic.info().address, [0, 0xf, 0x53, 0, 0, 0]);
    start(&mut nic, &settings()).unwrap();
    let interfaces = [0x8c, 0x8b, 0x98, 0xe4, 0x2a];
    let queues = [0x80, 0x2c, 0x80, 0x82, 0x80, 0x81];
    let filters = [0x8a, 0x8a, 0x8a, 0x8a, 0x2e];
    assert_eq!(card.take_commands(), [&interfaces[..], &queues, &filters].concat());
    assert_eq!(nic.notes(), Notes::default());
}

#[test]
fn several_queues_take_a_hash_context() {
    let card = Card::working();
    card.reply(0x8b, &[9, 0, 0, 0, 0, 0, 0, 0]);
    let mut nic = open(card.function()).unwrap();
    card.take_done();
    let pairs = start(&mut nic, &Settings { pairs: 4, ..settings() }).unwrap();
    assert_eq!(pairs.len(), 4);
    let done = card.take_commands();
    let at = |command| done.iter().position(|&done| done == command).unwrap();
    assert!(
        at(0x9e) < at(0xe1) && at(0xe1) < at(0xa2) && at(0xa2) < at(0xa0) && at(0xa0) < at(0x80)
    );
}

#[test]
fn without_a_context_the_firmwares_own_then_none() {
    let card = Card::working();
    card.reply(0x8b, &[5, 0, 0, 0, 0, 0, 0, 0]);
    card.answer(
        0x9e,
        Answer::Once(Box::new(Answer::Error(0x1000)), Box::new(Answer::Reply(vec![6, 0, 0, 0]))),
    );
    let mut nic = open(card.function()).unwrap();
    start(&mut nic, &Settings { pairs: 2, ..settings() }).unwrap();
    assert!(!nic.notes().no_rss);
    card.answer(0x9e, Answer::Error(0x1000));
    let mut nic = open(card.function()).unwrap();
    start(&mut nic, &Settings { pairs: 2, ..settings() }).unwrap();
    assert!(nic.notes().no_rss);
}

#[test]
fn a_virtual_function_that_may_little_still_works() {
    let card = Card::working();
    for denied in [0x6, 0x59, 0x122, 0xac, 0xc2, 0x24, 0x2a, 0x2c] {
        card.answer(denied, EPERM);
    }
    let mut nic = open(card.virtual_function()).unwrap();
    assert_eq!((nic.info().timer, nic.info().phy, nic.info().padding), (None, None, 256));
    start(&mut nic, &settings()).unwrap();
    let done = card.take_commands();
    assert!(done.contains(&0xaa) && !done.contains(&0x55), "its address comes from its port");
}

#[test]
fn refused_filters_are_noted_not_fatal() {
    let card = Card::working();
    let mut nic = open(card.function()).unwrap();
    card.answer(0x8a, EPERM);
    assert!(start(&mut nic, &settings()).unwrap_err().is_denied(), "its own address is a must");
    // Own address and broadcast, then denials.
    let reply = Answer::Reply([0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0].to_vec());
    card.answer(0x8a, Answer::Once(Box::new(reply.clone()), Box::new(EPERM)));
    let error = start(&mut nic, &settings()).unwrap_err();
    assert!(error.is_denied(), "so is broadcast");
    let mut wanted =
        crate::filter::filters([2; 6], Wanted { promiscuous: true, all_multicast: true });
    assert_eq!(wanted.nth(3), Some(Filter::OtherUnicast));
}

#[test]
fn segmentation_contexts_may_be_used_up() {
    let card = Card::working();
    card.answer(0x82, Answer::Once(Box::new(ENOSPC), Box::new(Answer::Reply(Vec::new()))));
    let mut nic = open(card.function()).unwrap();
    start(&mut nic, &settings()).unwrap();
    assert!(nic.notes().no_tso);
}

#[test]
fn too_few_interfaces_are_told() {
    let card = Card::working();
    let mut nic = open(card.function()).unwrap();
    let error = start(&mut nic, &Settings { pairs: 2, ..settings() }).unwrap_err();
    assert_eq!(error.to_string(), "2 queue pairs are wanted, the card gives 1");
    assert_eq!(card.take_commands().last(), Some(&ENTITY_RESET), "what was made is freed");
    // The BAR has room for 128 windows.
    let error = start(&mut nic, &Settings { pairs: 64, ..settings() }).unwrap_err();
    assert_eq!(error.to_string(), "64 queue pairs are wanted, the card gives 63");
}

#[test]
fn settings_that_no_card_takes() {
    let card = Card::working();
    let mut nic = open(card.function()).unwrap();
    card.take_done();
    for (wrong, reason) in [
        (Settings { pairs: 0, ..settings() }, "1 to 64"),
        (Settings { rx_entries: 600, ..settings() }, "512, 1024, 2048 or 4096"),
        (Settings { tx_entries: 4096, ..settings() }, "512, 1024 or 2048"),
        (Settings { mtu: 9203, ..settings() }, "9202"),
    ] {
        let error = start(&mut nic, &wrong).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(card.take_done(), []);
}

#[test]
fn firmware_that_lacks_what_we_need() {
    let card = Card::working();
    card.reply(0xbe, &[0; 78]);
    assert!(matches!(open(card.function()), Err(Error::Lacks(what)) if what.contains("14-byte")));
    let card = Card::working();
    card.reply(0xe4, &[0; 8]);
    let mut nic = open(card.function()).unwrap();
    let error = start(&mut nic, &settings()).unwrap_err();
    assert!(matches!(error, Error::Lacks(what) if what.contains("destination")));
}

#[test]
fn other_devices_are_refused() {
    let other = Card::working().function().with_ids(0x8086, 0x1572);
    let error = open(other).unwrap_err().to_string();
    assert_eq!(error, "PCI device 8086:1572 is not an EF10 network function");
}

#[test]
fn queues_that_do_not_flush_are_freed_by_force() {
    let card = Card::working();
    let mut nic = open(card.function()).unwrap();
    let mut pairs = start(&mut nic, &settings()).unwrap();
    card.take_done();
    let error = nic.stop(&mut pairs).unwrap_err();
    assert_eq!(error.to_string(), "receive queue 0 has not been flushed within 5 s");
    let done = card.take_commands();
    assert_eq!(done[..7], [0x2e, 0x8a, 0x8a, 0x8a, 0x8a, 0x84, 0x85]);
    assert_eq!(done.last(), Some(&ENTITY_RESET));
    nic.close().unwrap();
    assert_eq!(card.take_commands(), [0x1c]);
}

#[test]
fn a_restart_is_noticed_and_recovered_from() {
    let card = Card::working();
    let mut nic = open(card.function()).unwrap();
    let (_, memory) = nic.packet_memory(1 << 16).unwrap();
    nic.start(&settings(), memory).unwrap();
    assert_eq!(nic.notices().unwrap(), []);
    card.set_status(0xb007_0002);
    assert_eq!(nic.notices().unwrap(), [Notice::Restarted]);
    card.take_done();
    let pairs = nic.recover(&settings(), memory).unwrap();
    assert_eq!(pairs.len(), 1);
    assert_eq!(nic.notices().unwrap(), []);
    let done = card.take_commands();
    assert_eq!((done[0], done.last()), (0x6, Some(&0x2e)), "all of it once more");
    card.set_status(u32::MAX);
    assert!(matches!(nic.notices(), Err(Error::Removed)));
}

#[test]
fn a_controller_that_is_silent_is_reset() {
    let card = Card::working();
    let mut nic = open(card.function()).unwrap();
    let (_, memory) = nic.packet_memory(1 << 16).unwrap();
    nic.start(&settings(), memory).unwrap();
    card.answer(0x29, Answer::Silence);
    assert!(matches!(nic.link(), Err(Error::Timeout { .. })));
    card.take_done();
    nic.recover(&settings(), memory).unwrap();
    assert!(card.resets() == 1);
}

#[test]
fn interrupts_are_kept_apart_the_way_the_card_wants_it() {
    let register = |card: &Card| {
        let mut nic = open(card.function()).unwrap();
        card.take_done();
        start(&mut nic, &Settings { moderation_ns: 60_000, ..settings() }).unwrap();
        let timer = nic.info().timer;
        (timer, card.take_done())
    };
    let card = Card::working();
    let (timer, done) = register(&card);
    assert!(matches!(timer, Some(Timer::Register(_))));
    assert!(done.contains(&Done::Write(0x2420, 0x001f_c01f)), "31 ticks of 1920 ns: {done:?}");
    // Bug 61265: by command.
    let card = Card::working();
    card.reply(0x59, &[0x80, 0, 0, 0, 0x80, 0, 0, 0]);
    card.reply(0x120, &[0; 8]);
    let (_, done) = register(&card);
    assert!(!done.iter().any(|done| matches!(done, Done::Write(0x2420, _))));
    assert!(done.iter().any(|done| matches!(done, Done::Command(0x120, _))));
}
