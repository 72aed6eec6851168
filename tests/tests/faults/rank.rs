//! What a rank does: it goes as far as the point of its cell, and then what that point is about.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mscclrs_collectives::{AllGather, AllReduce, Collectives, DataType, ReduceOp, Shape, Tuning};
use mscclrs_core::bootstrap::{Address, Config, Secret};
use mscclrs_core::{Communicator, LocalBootstrap, SymmetricBuffer, TcpBootstrap, UniqueId};
use mscclrs_gpu::{BackendKind, Device, Stream, device_count};

use crate::kernel::Stay;
use crate::matrix::{End, Point, RANKS, VICTIM};
use crate::process::{Control, kind, say};
use crate::traces::Held;

const BYTES: u64 = 4096;
const COUNT: u64 = BYTES / 4;

struct Role<'a> {
    rank: u32,
    point: Point,
    end: End,
    meeting: Address,
    next: UniqueId,
    setup: Duration,
    kernel: Duration,
    control: &'a Control,
}

pub(crate) fn run(role: &str, control: &Control) {
    let words: Vec<&str> = role.split(' ').collect();
    let [rank, point, end, meeting, next, setup, kernel] = words[..] else { panic!("{role}") };
    let milliseconds = |text: &str| Duration::from_millis(text.parse().unwrap());
    let role = Role {
        rank: rank.parse().unwrap(),
        point: Point::ALL.into_iter().find(|p| format!("{p:?}") == point).unwrap(),
        end: End::ALL.into_iter().find(|e| format!("{e:?}") == end).unwrap(),
        meeting: meeting.parse().unwrap(),
        next: next.parse().unwrap(),
        setup: milliseconds(setup),
        kernel: milliseconds(kernel),
        control,
    };
    // What is made once and stays is there.
    alone().unwrap();
    let before = Held::settled();
    say("started");
    control.wait();
    match role.first_group() {
        Ok(()) => say("ended fine"),
        Err(error) => say(&format!("ended {error:#}")),
    }
    match before.surplus() {
        None => say("clean"),
        Some(surplus) => say(&surplus),
    }
    if role.rank != VICTIM {
        role.second_group().unwrap();
    }
}

/// A device for a rank, which ranks share where there are fewer GPUs.
fn device(rank: u32) -> Result<Device> {
    let kind = kind();
    let ordinal = if kind == BackendKind::Cuda { rank % device_count(kind)?.max(1) } else { rank };
    Ok(Device::open(kind, ordinal)?)
}

/// A group of one.
fn alone() -> Result<()> {
    let bootstrap = LocalBootstrap::create(1, Duration::from_secs(10)).remove(0);
    let device = device(0)?;
    let member = Member::new(Communicator::new(Arc::new(bootstrap), device)?)?;
    let memory = member.memory()?;
    let graph = member.stream.capture(|_| member.launch(&memory))?;
    graph.instantiate()?.launch(&member.stream)?;
    member.reduces(&memory, 1)
}

impl Role<'_> {
    fn config(&self) -> Config {
        let mut config = Config::new(self.rank, RANKS, self.meeting.clone());
        config.secret = Some(Secret::new("of this test"));
        config.timeout = Some(self.setup);
        if self.point == Point::Elsewhere {
            config.host_id = Some(self.rank.into());
        }
        config
    }

    fn is_victim(&self) -> bool {
        self.rank == VICTIM
    }

    /// The victim stays here if this is its point; the others say that they are as far.
    fn reach(&self, point: Point) {
        if self.point == point {
            self.here();
            if self.is_victim() {
                self.control.wait();
            }
        }
    }

    fn here(&self) {
        say(&format!("here {}", rustix::thread::gettid()));
    }

    fn first_group(&self) -> Result<()> {
        if self.point == Point::BeforeRendezvous {
            // The clock of the others is not to run before the fault.
            self.here();
            self.control.wait();
        }
        let bootstrap = Arc::new(TcpBootstrap::new(self.config())?);
        self.reach(Point::AfterRendezvous);
        let device = device(self.rank)?;
        let communicator = Communicator::new(bootstrap, device)?;
        if self.point == Point::Elsewhere {
            self.here();
            self.control.wait();
            return self.looks_up(&communicator);
        }
        let member = Member::new(communicator)?;
        member.communicator.set_timeout(Some(self.kernel));
        if self.point == Point::Registering {
            self.here();
            if self.rank == 2 {
                self.control.wait();
            }
        }
        let memory = member.memory()?;
        let stay = Stay::new(&member.communicator);
        member.reduces(&memory, 1)?;
        member.communicator.bootstrap().barrier()?;
        match self.point {
            Point::InKernel => self.in_kernel(&member, &memory, &stay),
            Point::InReplay => self.in_replay(&member, &memory, &stay),
            Point::OthersAhead => self.others_ahead(&member, &memory),
            Point::InDestroy => self.in_destroy(member, memory, stay),
            point => bail!("no rank was lost at {point:?}"),
        }
    }

    fn in_kernel(&self, member: &Member, memory: &Memory, stay: &Stay) -> Result<()> {
        if self.is_victim() {
            stay.launch(&member.stream);
            stay.until_running();
        } else {
            member.launch(memory)?;
        }
        self.here();
        member.finish()
    }

    fn in_replay(&self, member: &Member, memory: &Memory, stay: &Stay) -> Result<()> {
        let graph = member.stream.capture(|stream| -> Result<()> {
            member.launch(memory)?;
            if self.is_victim() {
                stay.launch(stream);
            }
            member.launch(memory)
        })?;
        let graph = graph.instantiate()?;
        member.communicator.bootstrap().barrier()?;
        graph.launch(&member.stream)?;
        if self.is_victim() {
            stay.until_running();
        }
        self.here();
        member.finish()
    }

    fn others_ahead(&self, member: &Member, memory: &Memory) -> Result<()> {
        member.launch(memory)?;
        if self.is_victim() {
            member.finish()?;
            self.here();
            self.control.wait();
            // What the others tell may come a moment after this goes on.
            return self.looks_up(&member.communicator);
        }
        (0..3).try_for_each(|_| member.launch(memory))?;
        self.here();
        member.finish()
    }

    fn in_destroy(&self, member: Member, memory: Memory, stay: Stay) -> Result<()> {
        if self.is_victim() {
            stay.launch(&member.stream);
            stay.until_running();
            self.here();
            drop((stay, memory, member));
            return Ok(());
        }
        self.here();
        self.control.wait();
        self.looks_up(&member.communicator)
    }

    /// Until it hears of a loss, where it has to.
    fn looks_up(&self, communicator: &Communicator) -> Result<()> {
        let learns = matches!(self.point, Point::Elsewhere | Point::OthersAhead);
        if self.end == End::Killed || (learns && self.end == End::Stopped) {
            let deadline = Instant::now() + Duration::from_secs(10);
            while Instant::now() < deadline {
                communicator.check()?;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(communicator.check()?)
    }

    /// Those who are left.
    fn second_group(&self) -> Result<()> {
        let rank = self.rank - u32::from(self.rank > VICTIM);
        let bootstrap = TcpBootstrap::new(Config::new(rank, RANKS - 1, self.next.clone()))?;
        let device = device(rank)?;
        let member = Member::new(Communicator::new(Arc::new(bootstrap), device)?)?;
        let memory = member.memory()?;
        (0..3).try_for_each(|seed| member.reduces(&memory, seed))?;
        member.communicator.bootstrap().barrier()?;
        say("again");
        Ok(())
    }
}

pub(crate) type Memory = [SymmetricBuffer; 2];

/// A rank of a group.
pub(crate) struct Member {
    pub(crate) communicator: Communicator,
    pub(crate) collectives: Collectives,
    pub(crate) stream: Stream,
}

impl Member {
    pub(crate) fn new(communicator: Communicator) -> Result<Member> {
        let shape = Shape { blocks: 2, threads: 32 };
        let tuning = Tuning::only(AllReduce::OneShotLl16, AllGather::Mesh, shape);
        let collectives = Collectives::with_tuning(&communicator, tuning)?;
        let stream = communicator.device().create_stream()?;
        Ok(Member { communicator, collectives, stream })
    }

    pub(crate) fn memory(&self) -> Result<Memory> {
        Ok([self.collectives.alloc(BYTES)?, self.collectives.alloc(BYTES)?])
    }

    pub(crate) fn launch(&self, [input, output]: &Memory) -> Result<()> {
        let (input, output) = (input.buffer(), output.buffer());
        let (data_type, op) = (DataType::U32, ReduceOp::Sum);
        Ok(self.collectives.all_reduce(input, output, COUNT, data_type, op, &self.stream)?)
    }

    pub(crate) fn finish(&self) -> Result<()> {
        Ok(self.communicator.synchronize(&self.stream)?)
    }

    /// An allreduce with a look at its result.
    pub(crate) fn reduces(&self, memory: &Memory, seed: u32) -> Result<()> {
        self.begins(memory, seed)?;
        self.ends(memory, seed)
    }

    /// Enqueues one.
    pub(crate) fn begins(&self, memory: &Memory, seed: u32) -> Result<()> {
        let input = words(seed + self.communicator.rank());
        memory[0].buffer().write(&self.stream, 0, &input)?;
        self.launch(memory)
    }

    /// Waits for it and looks at its result.
    pub(crate) fn ends(&self, memory: &Memory, seed: u32) -> Result<()> {
        self.finish()?;
        let mut seen = vec![0; BYTES as usize];
        memory[1].buffer().read(&self.stream, 0, &mut seen).context("reading the result")?;
        let ranks = self.communicator.world_size();
        let sum = ranks * seed + ranks * (ranks - 1) / 2;
        ensure!(seen == words(sum), "a wrong sum");
        Ok(())
    }
}

fn words(word: u32) -> Vec<u8> {
    word.to_le_bytes().repeat(COUNT as usize)
}
