@0xb7c41d0e95a3f268;
# What the hosts of one job say to each other.
#
# Before the first byte of this, the two hosts have made sure by small frames (`cluster/link/handshake.rs`) that they belong together and run the same. Each side offers a
# `Peer` as its bootstrap capability. Both run the same version, so fields and methods need not stay compatible: the handshake's protocol number changes with them.

interface Peer {
  push @0 (first :UInt64, messages :List(Message)) -> (through :UInt64);
  # Messages number `first` and following of the session, in order. What has come before is dropped; what leaves a gap ends the connection. `through` acknowledges
  # all messages up to it: they have been handed over, and are counted where they went.

  beat @1 () -> (through :UInt64, received :UInt64, asked :UInt64, answered :UInt64);
  # Says that the caller is alive, and measures the way there and back. `through` is as of `push`. The rest tells the caller whether something was lost on the way: the number of the last message
  # that has come, and how many lookups have come over this connection and were answered.

  get @2 (attempt :UInt64, table :UInt64, keys :Column, read :Read) -> (answer :GetAnswer);
  # The values of `keys` in a table (by its number in the job) whose owner is the callee's.

  scan @3 (attempt :UInt64, table :UInt64, from :Data, to :Bound, limit :UInt32, read :Read) -> (answer :ScanAnswer);
  # The callee's keys from `from` (included) to `to` (excluded) with their values.

  leave @4 (reason :Text) -> ();
  # The session is over, for this reason.
}

struct Message {
  union {
    void @0 :Void;
    # Nothing any more: what was here belonged to an attempt that is over.

    control @1 :Data;
    # For the epoch protocol, which alone knows what it says.

    delivery @2 :Delivery;
  }
}

struct Column {
  # Byte strings: item i is from `ends[i - 1]` to `ends[i]`.

  bytes @0 :Data;
  ends @1 :List(UInt32);
}

struct Batch {
  keys @0 :Column;
  values @1 :Column;
  times @2 :List(Int64);
}

struct Delivery {
  attempt @0 :UInt64;
  # The attempt that it belongs to.

  task @1 :UInt32;
  # The task that it is for, by its number in the job.

  union {
    records @2 :Batch;
    looped @3 :Batch;
    updates @4 :Updates;
    outcomes @5 :Outcomes;
  }
}

struct Updates {
  table @0 :UInt32;
  # By its place among the task's tables.

  op @1 :Op;
  keys @2 :Column;
  operands @3 :Operands;
  expected @4 :Operands;
  times @5 :List(Int64);

  union {
    unasked @6 :Void;
    asked @7 :Asked;
  }
}

struct Op {
  union {
    put @0 :Void;
    putIfAbsent @1 :Void;
    delete @2 :Void;
    compareAndPut @3 :Void;
    add @4 :Number;
    min @5 :Number;
    max @6 :Number;
    append @7 :UInt32;
    # The most items that stay.
  }
}

enum Number {
  s64 @0;
  f32 @1;
  f64 @2;
}

struct Operands {
  items @0 :Column;

  present @1 :Data;
  # A byte an item: 0 for one that is absent. Empty where all are there.
}

struct Asked {
  port @0 :UInt32;
  task @1 :UInt32;
  # Who asks, by its number in the job.

  records @2 :Batch;
}

struct Outcomes {
  port @0 :UInt32;
  records @1 :Batch;
}

struct Read {
  union {
    live @0 :Void;
    # The latest batch that each owner has applied.

    committed @1 :Void;
    # The callee's last committed epoch.

    asOf @2 :UInt64;
    # A committed epoch that is still retained.

    times @3 :List(Int64);
    # The value that held at an event time, one a key.
  }
}

struct GetAnswer {
  union {
    values @0 :Values;
    refused @1 :Refusal;
  }
}

struct Values {
  states @0 :Data;
  # A byte a key: 0 for an absent value, 1 for one that is there, 2 for one that is to be asked for again (the answer is full), 3 for one too large for any answer.

  values @1 :Column;
  # An item a key, empty where the value is not here.
}

struct ScanAnswer {
  union {
    page @0 :Page;
    refused @1 :Refusal;
  }
}

struct Page {
  keys @0 :Column;
  values @1 :Column;

  next @2 :Bound;
  # Where the next page begins, as `before`; `end` when this was the last.
}

struct Bound {
  union {
    end @0 :Void;
    before @1 :Data;
  }
}

struct Refusal {
  kind @0 :Kind;
  text @1 :Text;

  enum Kind {
    stale @0;
    # The attempt is over.

    gone @1;
    # The epoch cannot be read.

    notAllowed @2;
    # The table cannot be read so.

    failed @3;
    # State could not be read.
  }
}
