//! What the functions of all languages do alike, by `mode`: see tests/it/languages.rs.

const std = @import("std");
const wasmill = @import("wasmill");

const counts: wasmill.Table([]const u8) = .{ .name = "counts" };
const others: wasmill.UsedTable([]const u8) = .{ .name = "others" };

const Mode = enum { count, join, fail, echo };
var mode: Mode = undefined;

pub fn describe() void {
    wasmill.named("behaviour", "0.1.0");
    counts.declare();
    others.declare();
}

pub fn init(config: []const u8) !void {
    const name = if (wasmill.jsonMember(config, "mode")) |member| wasmill.jsonText(member) orelse "" else "";
    mode = std.meta.stringToEnum(Mode, name) orelse return wasmill.reject("the config has no mode of count, join, fail, echo");
}

pub fn prefetch(record: wasmill.Record) void {
    if (mode == .join) others.want(record.key);
}

pub fn process(record: wasmill.Record) !void {
    switch (mode) {
        .count => try count(record),
        .join => wasmill.emit(record.key, wasmill.print("{s}={s}", .{ record.key, others.lookup(record.key) orelse "-" })),
        .fail => try fail(record),
        .echo => echo(record),
    }
}

fn count(record: wasmill.Record) !void {
    const number = try std.fmt.parseInt(i64, counts.get(record.key) orelse "0", 10);
    const text = wasmill.print("{d}", .{number + 1});
    counts.put(record.key, text);
    wasmill.emit(record.key, text);
}

fn fail(record: wasmill.Record) !void {
    if (std.mem.eql(u8, record.value, "reject")) return wasmill.reject("told to");
    if (std.mem.eql(u8, record.value, "trap")) @panic("told to trap");
    if (std.mem.eql(u8, record.value, "loop")) {
        wasmill.atFault();
        var forever = true;
        const looks: *volatile bool = &forever;
        while (looks.*) {}
    }
    echo(record);
}

fn echo(record: wasmill.Record) void {
    wasmill.emit(record.key, record.value);
    wasmill.count("echoed", 1);
}

comptime {
    wasmill.component(@This());
}
pub const panic = wasmill.panic;
