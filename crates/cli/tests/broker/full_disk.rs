//! A broker whose disk is full says so, and says when it is not any more.

use std::io::{Read, Write};
use std::net::TcpStream;

use semel_testkit::disk::{fill, with_a_small_disk};

use crate::process::Broker;

/// Whether it is ready; else why not.
pub(crate) fn ready(broker: &Broker) -> Result<(), String> {
    let address = broker.url.strip_prefix("ws://").unwrap().split('/').next().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /readyz HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, why) = answer.split_once("\r\n\r\n").unwrap();
    match head.split(' ').nth(1).unwrap() {
        "200" => Ok(()),
        "503" => Err(why.to_owned()),
        other => panic!("{other}: {why}"),
    }
}

#[test]
fn a_broker_without_room_is_not_ready() {
    let test = "full_disk::a_broker_without_room_is_not_ready";
    let Some(disk) = with_a_small_disk(test, 8_000_000) else { return };
    let broker = Broker::start(&format!("sqlite:{}", disk.join("broker.db").display()), &[]);
    ready(&broker).unwrap();
    fill(&disk.join("filled"));
    let why = loop {
        match ready(&broker) {
            // Of the moment before.
            Ok(()) => std::thread::yield_now(),
            Err(why) => break why,
        }
    };
    assert_eq!(why, "the disk of the store is full\n");
    std::fs::remove_file(disk.join("filled")).unwrap();
    while ready(&broker).is_err() {
        std::thread::yield_now();
    }
}
