@0xe2c6b1d4f09a7358;
# What the floor of remote lookups moves: the same columns as the hosts of a job do, and nothing else.

interface Floor {
  get @0 (keys :Column) -> (values :Column);
}

struct Column {
  # Byte strings: item i is from `ends[i - 1]` to `ends[i]`.

  bytes @0 :Data;
  ends @1 :List(UInt32);
}
