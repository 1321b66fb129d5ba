//! For each page, how often it has been seen so far.

const wasmill = @import("wasmill");

const counts: wasmill.Table(i64) = .{ .name = "seen" };

pub fn describe() void {
    wasmill.named("counter", "0.1.0");
    counts.declare();
}

pub fn init(_: []const u8) !void {}

pub fn process(record: wasmill.Record) !void {
    const seen = (counts.get(record.key) orelse 0) + 1;
    counts.put(record.key, seen);
    wasmill.emit(record.key, wasmill.print(
        \\{{"page":"{s}","seen":{d}}}
    , .{ record.key, seen }));
}

comptime {
    wasmill.component(@This());
}
pub const panic = wasmill.panic;
