@0xd3a1f0c7b26e4985;
# Reading the tables of a running job, from any language that has Cap'n Proto.
#
# Every job whose manifest has `[admin] capnp = "HOST:PORT"` answers there. The bootstrap capability of a connection is `Entrance`. Everything is
# read-only: a write from outside could not be replayed after a crash, so it comes in through a source.
#
# What the job was asked and cannot answer (an unknown table, an epoch that is not kept, too many keys) fails the call with a reason in words. Fields and methods are
# only ever added.

interface Entrance {
  enter @0 (token :Text) -> (tables :Tables);
  # Gives access. `token` is the one of the manifest's `[admin]`; where that has none, any text does.
}

interface Tables {
  tables @0 () -> (tables :List(TableInfo), oldest :UInt64, newest :UInt64);
  # All tables, and the epochs that can be read: from the oldest retained to the last committed one.

  get @1 (table :Text, keys :List(Data), consistency :Consistency) -> (values :List(Value), epoch :UInt64);
  # The values of `keys`, in their order, all as of one moment. `epoch` is the one that was read; with `live` it is 0.
  # At most 10,000 keys; the values of one answer are at most 16 MiB.

  scan @2 (table :Text, from :Data, to :Bound, limit :UInt32, consistency :Consistency) -> (page :Page, epoch :UInt64);
  # The keys from `from` (included) to `to` (excluded) with their values, ascending by their bytes, at most `limit`, at most 4,096, and about 1 MiB. As of committed epochs any
  # table can be scanned; `live` needs one that is declared `ordered`. For the next page of the same moment, ask `asOf` the epoch of the first.

  awaitEpoch @3 (after :UInt64) -> (oldest :UInt64, newest :UInt64);
  # Answers once an epoch later than `after` is committed: with the epochs that can be read then. For watching keys without asking again and again.
}

struct Consistency {
  union {
    committed @0 :Void;
    # The last committed epoch: what no failure can take back. The default.

    live @1 :Void;
    # The latest batch that each owner has applied. A failure may take it back.

    asOf @2 :UInt64;
    # A committed epoch that is still retained (`checkpoint.retained`).
  }
}

struct TableInfo {
  name @0 :Text;
  # `operator.table`.

  ordered @1 :Bool;
  # Whether it can be scanned live.

  schemaVersion @2 :UInt32;
  # The version of its values' encoding.
}

struct Value {
  union {
    absent @0 :Void;
    # The key has no value.

    present @1 :Data;
  }
}

struct Bound {
  union {
    end @0 :Void;
    # No bound: to the last key.

    before @1 :Data;
    # To before this key.
  }
}

struct Page {
  keys @0 :List(Data);
  values @1 :List(Data);

  next @2 :Bound;
  # Where the next page begins, as `before`; `end` when this was the last. A page that is not the last may have fewer items than were asked for, or none.
}
