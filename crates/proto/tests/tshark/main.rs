//! Compares this crate's encoding with Wireshark's dissectors, for every procedure, operation and
//! callback.
//!
//! Sample messages are decoded by `tshark` and by this crate, and the named values of both are
//! compared for each message. The test fails if tshark calls a message malformed or leaves bytes
//! unread. Messages that tshark 4.0 cannot read are skipped, with the reason in a comment. Without
//! tshark on the machine the test reports that nothing was compared.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod pcap;
#[allow(dead_code, reason = "some of it is for the example only")]
#[path = "../../examples/decode/summary/mod.rs"]
mod summary;

use bytes::Bytes;
use hither_proto::rpc::{AuthSys, CallHeader, Message, OpaqueAuth, call, reply};
use hither_proto::sample::{Sample, Source};
use hither_proto::xdr::{Dec, Enc};
use hither_proto::{mount, nfs3, nfs4, portmap};
use pcap::Pcap;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};
use summary::{Reader, Summary};

/// The callback program number that Linux uses.
const CB_PROGRAM: u32 = 0x4000_0000;

/// Messages of one conversation.
struct Traffic {
    random: u64,
    xid: u32,
    messages: Vec<(bool, Bytes)>,
}

impl Traffic {
    fn new() -> Self {
        Self { random: 0x9e37_79b9_7f4a_7c15, xid: 0, messages: Vec::new() }
    }

    fn sample<T: Sample>(&mut self) -> T {
        T::sample(&mut Source::plain(&self.decisions()))
    }

    /// A sample of the arm with this index. The source's first decision selects the arm.
    fn arm<T: Sample>(&mut self, index: usize) -> T {
        let mut decisions = self.decisions();
        decisions[0] = u8::try_from(index).unwrap();
        T::sample(&mut Source::plain(&decisions))
    }

    fn decisions(&mut self) -> [u8; 1500] {
        std::array::from_fn(|_| {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            (self.random >> 24) as u8
        })
    }

    fn add(&mut self, (prog, vers, proc): (u32, u32, u32), args: Enc, res: Enc, from_server: bool) {
        self.xid += 1;
        let cred = match self.xid % 2 {
            0 => OpaqueAuth::none(),
            _ => OpaqueAuth::sys(&self.sample::<AuthSys>()),
        };
        self.messages.push((from_server, call(self.xid, prog, vers, proc, &cred, args).to_bytes()));
        self.messages.push((!from_server, reply(self.xid, res).to_bytes()));
    }
}

/// tshark's reading of one message: values by field name.
type Seen = BTreeMap<String, Vec<String>>;

/// Fields by which tshark reports that it could not read a message completely.
const TROUBLE: [&str; 5] =
    ["_ws.malformed", "data.len", "rpc.fragment_data", "rpc.unknown_body", "rpc.cannot_dissect"];

/// Fields that tshark repeats in replies and at the start of the program's own part.
const REPEATED: [&str; 3] = ["rpc.program", "rpc.programversion", "rpc.procedure"];

fn tshark(capture: &[u8], fields: &BTreeSet<&'static str>) -> Option<Vec<Seen>> {
    let names: Vec<&str> = fields.iter().copied().chain(TROUBLE).chain(["nfs.bitmap_no_dissector"]).collect();
    let mut command = Command::new("tshark");
    command.args([
        "-n",
        "-r",
        "-",
        "-T",
        "fields",
        "-E",
        "occurrence=a",
        "-E",
        "aggregator=|",
        "-E",
        "separator=/t",
    ]);
    command.args(names.iter().flat_map(|n| ["-e", n]));
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut stdin = child.stdin.take().unwrap();
    let capture = capture.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&capture));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let frames = text.lines().map(|line| {
        let columns = names.iter().zip(line.split('\t')).filter(|(_, v)| !v.is_empty());
        columns.map(|(n, v)| (n.to_string(), v.split('|').map(normal).collect())).collect()
    });
    Some(frames.collect())
}

/// Numbers in decimal, flags as 0 or 1, opaque values without separators.
fn normal(value: &str) -> String {
    match value {
        "True" => "1".into(),
        "False" => "0".into(),
        _ => match value.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok()) {
            Some(number) => number.to_string(),
            None => value.to_string(),
        },
    }
}

/// Compares all messages of `traffic`. `known` returns the parts that tshark cannot read.
fn compare(traffic: &Traffic, known: impl Fn((u32, u32, u32), &Bytes) -> Skip) {
    let mut capture = Pcap::new();
    let mut reader = Reader::default();
    let mut ours = Vec::new();
    let mut names = BTreeSet::new();
    for (from_server, message) in &traffic.messages {
        capture.message(*from_server, message);
        let summary = reader.read(message).unwrap().unwrap();
        names.extend(summary.fields.0.iter().map(|(name, _)| *name));
        ours.push(summary);
    }
    let Some(theirs) = tshark(&capture.finish(), &names) else {
        eprintln!("tshark is not installed: nothing was compared");
        return;
    };
    assert_eq!(ours.len(), theirs.len());
    let (mut compared, mut wrong) = (0, BTreeMap::new());
    for ((mine, their), (_, message)) in ours.iter().zip(&theirs).zip(&traffic.messages) {
        if known(mine.proc, message) == Skip::Message {
            continue;
        }
        for (name, what) in differences(mine, their, &names, &mut compared) {
            wrong.entry(name).or_insert_with(|| format!("{what}\n   in {mine:?}"));
        }
    }
    let report: Vec<_> = wrong.iter().map(|(name, what)| format!("{name}: {what}")).collect();
    assert!(wrong.is_empty(), "first difference of each field:\n{}", report.join("\n"));
    eprintln!("{compared} values of {} messages agree", ours.len());
    assert!(compared > 5 * ours.len());
}

fn differences(
    mine: &Summary,
    their: &Seen,
    names: &BTreeSet<&'static str>,
    compared: &mut usize,
) -> Vec<(String, String)> {
    let mut wrong = Vec::new();
    for trouble in TROUBLE.iter().filter(|t| their.contains_key(**t)) {
        wrong.push((trouble.to_string(), "tshark cannot read it".to_string()));
    }
    let mut seen = Seen::new();
    for (name, value) in &mine.fields.0 {
        seen.entry(name.to_string()).or_default().push(value.clone());
    }
    // After an unknown attribute tshark reads no further attributes.
    if their.contains_key("nfs.bitmap_no_dissector") {
        return wrong;
    }
    for name in names {
        let values = seen.get(*name).cloned().unwrap_or_default();
        let mut theirs = their.get(*name).cloned().unwrap_or_default();
        if REPEATED.contains(name) {
            theirs.truncate(values.len());
        }
        if theirs != values {
            wrong.push((name.to_string(), format!("tshark {theirs:?}, we {values:?}")));
        }
        *compared += values.len();
    }
    wrong
}

#[derive(PartialEq)]
enum Skip {
    Nothing,
    Message,
}

fn nothing(_: (u32, u32, u32), _: &Bytes) -> Skip {
    Skip::Nothing
}

macro_rules! procedures {
    ($traffic:ident, $prog:expr, $vers:expr, $call:ty, $reply:ty, $procs:expr, $times:expr) => {
        for (index, procedure) in $procs.iter().enumerate() {
            for _ in 0..$times {
                let (args, res) = ($traffic.arm::<$call>(index), $traffic.arm::<$reply>(index));
                assert_eq!((args.procedure(), res.procedure()), (*procedure, *procedure));
                let (mut a, mut r) = (Enc::new(), Enc::new());
                args.encode(&mut a);
                res.encode(&mut r);
                $traffic.add(($prog, $vers, procedure.0), a, r, false);
            }
        }
    };
}

#[test]
fn nfs3() {
    let mut t = Traffic::new();
    procedures!(t, nfs3::PROGRAM, nfs3::VERSION, nfs3::Call3, nfs3::Reply3, nfs3::Proc3::VALUES, 50);
    compare(&t, nothing);
}

#[test]
fn mount() {
    let mut t = Traffic::new();
    procedures!(
        t,
        mount::PROGRAM,
        mount::VERSION,
        mount::MountCall,
        mount::MountReply,
        mount::MountProc::VALUES,
        50
    );
    compare(&t, nothing);
}

#[test]
fn portmap() {
    let mut t = Traffic::new();
    use portmap::{PortmapCall, PortmapProc, PortmapReply, RpcbindCall, RpcbindProc, RpcbindReply};
    procedures!(t, portmap::PROGRAM, 2, PortmapCall, PortmapReply, PortmapProc::VALUES, 50);
    for version in [3, 4] {
        procedures!(t, portmap::PROGRAM, version, RpcbindCall, RpcbindReply, RpcbindProc::VALUES, 50);
    }
    // tshark 4.0 does not read the arguments of the other rpcbind procedures.
    let known = [RpcbindProc::NULL, RpcbindProc::GETADDR, RpcbindProc::DUMP].map(|p| p.0);
    compare(&t, move |(_, vers, proc), _| {
        let is_read = vers == 2 || known.contains(&proc);
        if is_read { Skip::Nothing } else { Skip::Message }
    });
}

fn body(message: &Bytes) -> (Option<CallHeader>, Bytes) {
    match Message::decode(message).unwrap() {
        Message::Call(h, body) => (Some(h), body),
        Message::Reply(_, body) => (None, body),
        Message::UnknownVersion { .. } => panic!("not ours"),
    }
}

/// The parts of an NFSv4 message that tshark 4.0 cannot read.
fn nfs4_known(_: (u32, u32, u32), message: &Bytes) -> Skip {
    use nfs4::{
        CopyFail, GetdeviceinfoFail, LayoutgetFail, OpenClaim, OpenDelegation, StateProtectOk,
        WhyNoDelegation,
    };
    use nfs4::{LayoutReturn, LayoutType, NfsOpnum4 as N, Op, OpRes};
    let (header, body) = body(message);
    // tshark dissects bodies of these layout types. The samples contain only a few letters.
    let dissected =
        [LayoutType::NFSV4_1_FILES, LayoutType::FLEX_FILES, LayoutType::SCSI, LayoutType::BLOCK_VOLUME];
    let number = if header.is_some() {
        let compound: nfs4::Compound = Dec::all(&body).unwrap();
        let Some(op) = compound.ops.into_iter().next() else { return Skip::Nothing };
        match &op {
            // tshark stops after the claim type.
            Op::Open(a) if matches!(a.claim, OpenClaim::DelegCurFh(_)) => return Skip::Message,
            Op::Layoutreturn(a)
                if matches!(a.layoutreturn, LayoutReturn::File(_)) && dissected.contains(&a.layout_type) =>
            {
                return Skip::Message;
            }
            Op::Layoutstats(a) if dissected.contains(&a.layoutupdate.layout_type) => return Skip::Message,
            _ => op.number(),
        }
    } else {
        let compound: nfs4::CompoundReply = Dec::all(&body).unwrap();
        let Some(res) = compound.results.0.into_iter().next() else { return Skip::Nothing };
        match &res {
            // tshark does not read the flag after the reason.
            OpRes::Open(Ok(r))
                if matches!(
                    r.delegation,
                    OpenDelegation::NoneExt(WhyNoDelegation::Contention(_) | WhyNoDelegation::Resource(_))
                ) =>
            {
                return Skip::Message;
            }
            // tshark takes the list of handles for one handle.
            OpRes::ExchangeId(Ok(r)) if matches!(r.state_protect, StateProtectOk::Ssv(_)) => {
                return Skip::Message;
            }
            OpRes::Getdeviceinfo(Ok(_)) | OpRes::Layoutget(Ok(_)) => return Skip::Message,
            // tshark reads nothing after these statuses.
            OpRes::Getdeviceinfo(Err(GetdeviceinfoFail::TooSmall(_)))
            | OpRes::Layoutget(Err(LayoutgetFail::TryLater(_)))
            | OpRes::Copy(Err(CopyFail::NoReqs(_))) => return Skip::Message,
            _ => res.number(),
        }
    };
    match number {
        // tshark does not read these operations.
        N::GET_DIR_DELEGATION | N::SET_SSV | N::WANT_DELEGATION => Skip::Message,
        // tshark takes 64-bit numbers for 32-bit ones.
        N::WRITE_SAME if header.is_some() => Skip::Message,
        _ => Skip::Nothing,
    }
}

#[test]
fn nfs4() {
    use nfs4::{Compound, CompoundReply, NfsOpnum4, Op, OpRes};
    let mut t = Traffic::new();
    let numbers = NfsOpnum4::VALUES.iter().enumerate();
    for (index, number) in numbers.filter(|(_, n)| **n != NfsOpnum4::ILLEGAL) {
        for _ in 0..40 {
            let (op, res) = (t.arm::<Op>(index), t.arm::<OpRes>(index));
            assert_eq!((op.number(), res.number()), (*number, *number));
            let args = Compound { tag: t.sample(), ..Compound::new(2, vec![op]) };
            let res = CompoundReply { status: res.status(), tag: t.sample(), results: vec![res].into() };
            t.add((nfs4::PROGRAM, nfs4::VERSION, 1), Enc::of(&args), Enc::of(&res), false);
        }
    }
    compare(&t, nfs4_known);
}

#[test]
fn nfs4_callbacks() {
    use nfs4::{CbCompound, CbCompoundReply, CbOp, CbRes, NfsCbOpnum4};
    let mut t = Traffic::new();
    let numbers = NfsCbOpnum4::VALUES.iter().enumerate();
    for (index, number) in numbers.filter(|(_, n)| **n != NfsCbOpnum4::ILLEGAL) {
        for _ in 0..40 {
            let (op, res) = (t.arm::<CbOp>(index), t.arm::<CbRes>(index));
            assert_eq!((op.number(), res.number()), (*number, *number));
            let args = CbCompound { ops: vec![op], ..t.sample() };
            let res = CbCompoundReply { status: res.status(), tag: t.sample(), results: vec![res].into() };
            t.add(
                (CB_PROGRAM, nfs4::CB_VERSION, nfs4::CB_PROC_COMPOUND),
                Enc::of(&args),
                Enc::of(&res),
                true,
            );
        }
    }
    // tshark 4.0 does not read these callbacks.
    let unread = [
        NfsCbOpnum4::CB_NOTIFY,
        NfsCbOpnum4::CB_PUSH_DELEG,
        NfsCbOpnum4::CB_RECALL_ANY,
        NfsCbOpnum4::CB_RECALLABLE_OBJ_AVAIL,
        NfsCbOpnum4::CB_RECALL_SLOT,
        NfsCbOpnum4::CB_WANTS_CANCELLED,
        NfsCbOpnum4::CB_NOTIFY_DEVICEID,
    ];
    compare(&t, |_, message| {
        let (Some(_), body) = body(message) else { return Skip::Nothing };
        let compound: CbCompound = Dec::all(&body).unwrap();
        let number = compound.ops.first().map(CbOp::number);
        if number.is_some_and(|n| unread.contains(&n)) { Skip::Message } else { Skip::Nothing }
    });
}
