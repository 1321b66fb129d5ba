//! Functions for Wasmill in Zig: one record at a time, over what wasmill.c does with batches.
//!
//!     pub fn describe() void                            says what the function is
//!     pub fn init(config: []const u8) !void             prepares it
//!     pub fn process(record: wasmill.Record) !void      works on a record; an error refuses it, and undoes what it has done
//!     pub fn prefetch(record: wasmill.Record) void      may say what `process` will look up
//!
//!     comptime { wasmill.component(@This()); }
//!     pub const panic = wasmill.panic;
//!
//! Bytes that are given to a function live until the call is done; bytes that it gives are copied. A call that the host refuses does nothing, and the record is refused with the host's reason:
//! nothing has to be checked for that.

const std = @import("std");

/// A record: its key, its value, and its event time in milliseconds since the Unix epoch.
pub const Record = struct {
    key: []const u8,
    value: []const u8,
    time: ?i64,

    /// The member `name` of the value, which is a JSON object, as it stands there: a text with its quotes.
    pub fn member(record: Record, name: [*:0]const u8) ?[]const u8 {
        return jsonMember(record.value, name);
    }

    /// A member that is a whole number.
    pub fn number(record: Record, name: [*:0]const u8) ?i64 {
        const digits = record.member(name) orelse return null;
        return std.fmt.parseInt(i64, digits, 10) catch null;
    }

    /// A member that is a text without escapes.
    pub fn text(record: Record, name: [*:0]const u8) ?[]const u8 {
        return jsonText(record.member(name) orelse return null);
    }
};

/// Why a record is refused, or a config: for reasons that are not an error's name.
pub fn reject(reason: []const u8) error{Rejected} {
    rejection = terminated(reason);
    return error.Rejected;
}

/// A text that lives until the call is done.
pub fn print(comptime format: []const u8, arguments: anytype) []const u8 {
    return std.fmt.allocPrint(allocator, format, arguments) catch @panic("out of memory");
}

/// Memory that lives until the call is done. Freeing it does nothing.
pub const allocator: std.mem.Allocator = .{ .ptr = undefined, .vtable = &.{ .alloc = allocate, .resize = std.mem.Allocator.noResize, .remap = std.mem.Allocator.noRemap, .free = std.mem.Allocator.noFree } };

/// A table of the function's own, that holds structs or numbers as they are in memory, or bytes: `Table([]const u8)`.
pub fn Table(comptime Value: type) type {
    return struct {
        name: [*:0]const u8,
        /// Raise it when `Value` changes.
        schema_version: u32 = 1,

        const Self = @This();

        /// To be called by `describe`.
        pub fn declare(table: Self) void {
            wasmill_has_table(&table.c());
        }

        /// The rest of the job may read and change the table, where the manifest says so, too. To be called by `describe`.
        pub fn open(table: Self) void {
            wasmill_open(&table.c());
        }

        /// The table can be scanned. To be called by `describe`.
        pub fn ordered(table: Self) void {
            wasmill_ordered(&table.c());
        }

        pub fn get(table: Self, key: []const u8) ?Value {
            if (Value == []const u8) {
                var found: Bytes = undefined;
                return if (wasmill_get(&table.c(), bytes(key), &found)) found.slice() else null;
            }
            var value: Value = undefined;
            return if (wasmill_get_into(&table.c(), bytes(key), &value, @sizeOf(Value))) value else null;
        }

        pub fn put(table: Self, key: []const u8, value: Value) void {
            wasmill_put(&table.c(), bytes(key), encoded(Value, &value));
        }

        pub fn delete(table: Self, key: []const u8) void {
            wasmill_delete(&table.c(), bytes(key));
        }

        fn c(table: Self) TableName {
            return .{ .name = table.name, .schema_version = table.schema_version };
        }
    };
}

/// A table of anyone, by the name that `uses.NAME` in the manifest has.
pub fn UsedTable(comptime Value: type) type {
    return struct {
        name: [*:0]const u8,

        const Self = @This();

        /// To be called by `describe`.
        pub fn declare(table: Self) void {
            wasmill_uses(table.name);
        }

        /// As of the latest batch that the owner has applied. Null, too, where the value has another size than it should.
        pub fn lookup(table: Self, key: []const u8) ?Value {
            var found: Bytes = undefined;
            if (!wasmill_lookup(table.name, bytes(key), &found)) return null;
            if (Value == []const u8) return found.slice();
            if (found.length != @sizeOf(Value)) return null;
            var value: Value = undefined;
            @memcpy(std.mem.asBytes(&value), found.slice());
            return value;
        }

        /// For `prefetch`: `lookup` of this key will find its value without a call of its own.
        pub fn want(table: Self, key: []const u8) void {
            wasmill_want(table.name, bytes(key));
        }

        /// Changes a value, exactly once, after the batch has succeeded.
        pub fn update(table: Self, key: []const u8, change: Change, operand: Value) void {
            wasmill_update(table.name, bytes(key), change, encoded(Value, &operand));
        }

        /// Gives a record to the function that owns the table.
        pub fn send(table: Self, key: []const u8, value: []const u8) void {
            wasmill_send(table.name, bytes(key), bytes(value));
        }
    };
}

/// How an update changes the value that it finds.
pub const Change = enum(c_uint) { put, put_if_absent, delete, add_s64, add_f32, add_f64, min_s64, max_s64, min_f32, max_f32, min_f64, max_f64 };

/// Says what the function is called. To be called by `describe`.
pub fn named(function: [*:0]const u8, version: [*:0]const u8) void {
    wasmill_name(function, version);
}

/// A port beside `out`. To be called by `describe`.
pub fn port(port_name: [*:0]const u8) void {
    wasmill_has_port(port_name);
}

/// Emits a record on the port `out`, with the time of the record that is worked on.
pub fn emit(key: []const u8, value: []const u8) void {
    wasmill_emit(bytes(key), bytes(value));
}

pub fn emitTo(port_name: [*:0]const u8, key: []const u8, value: []const u8, time: ?i64) void {
    wasmill_emit_to(port_name, bytes(key), bytes(value), time orelse no_time);
}

pub const Level = enum(c_uint) { trace, debug, info, warn, err };

pub fn log(level: Level, line: []const u8) void {
    wasmill_log(level, bytes(line));
}

/// Adds to a counter; not for a refused record.
pub fn count(metric: [*:0]const u8, by: u64) void {
    wasmill_count(metric, by);
}

pub fn gauge(metric: [*:0]const u8, value: f64) void {
    wasmill_gauge(metric, value);
}

/// Says that the record which is worked on is to blame if the call now traps or never ends.
pub fn atFault() void {
    wasmill_at_fault();
}

/// The member `member_name` of a JSON object, as it stands there: a text with its quotes.
pub fn jsonMember(object: []const u8, member_name: [*:0]const u8) ?[]const u8 {
    var found: Bytes = undefined;
    return if (wasmill_json_member(bytes(object), member_name, &found)) found.slice() else null;
}

/// What is between the quotes of a JSON text without escapes.
pub fn jsonText(member: []const u8) ?[]const u8 {
    var found: Bytes = undefined;
    return if (wasmill_json_text(bytes(member), &found)) found.slice() else null;
}

/// A panic is logged, its record named, and the batch run again without it.
pub const panic = std.debug.FullPanic(struct {
    fn panicked(message: []const u8, _: ?usize) noreturn {
        wasmill_panic(terminated(message));
    }
}.panicked);

/// Makes a component of the functions of a file.
pub fn component(comptime Function: type) void {
    const Exports = struct {
        fn describe() callconv(.c) void {
            Function.describe();
        }
        fn init(config: Bytes) callconv(.c) ?[*:0]const u8 {
            return reasonOf(Function.init(config.slice()));
        }
        fn process(record: *const RawRecord) callconv(.c) ?[*:0]const u8 {
            return reasonOf(Function.process(record.seen()));
        }
        fn prefetch(record: *const RawRecord) callconv(.c) void {
            Function.prefetch(record.seen());
        }
    };
    @export(&Exports.describe, .{ .name = "function_describe" });
    @export(&Exports.init, .{ .name = "function_init" });
    @export(&Exports.process, .{ .name = "function_process" });
    if (@hasDecl(Function, "prefetch")) @export(&Exports.prefetch, .{ .name = "function_prefetch" });
}

/// A host in memory: what testing/wasmill_test.h says, for blocks of `test`.
pub const testing = struct {
    pub fn begin(config: [*:0]const u8) void {
        test_begin_at("test", 0, config);
    }
    /// Adds a record to the next batch.
    pub fn record(key: [*:0]const u8, value: [*:0]const u8) void {
        test_record(key, value);
    }
    /// Fills a table of others.
    pub fn other(table: [*:0]const u8, key: [*:0]const u8, value: [*:0]const u8) void {
        test_other(table, key, value);
    }
    /// Has the records worked on.
    pub fn batch() void {
        test_batch_at("test", 0);
    }
    /// The last batch has emitted this as its record `index`.
    pub fn emitted(index: usize, port_name: [*:0]const u8, key: [*:0]const u8, value: [*:0]const u8) void {
        test_emitted_at("emitted", @intCast(index), index, port_name, key, value);
    }
    /// The last batch has refused its record `index` for this reason.
    pub fn rejected(index: usize, reason: [*:0]const u8) void {
        test_rejected_at("rejected", @intCast(index), index, reason);
    }
    /// Whether all was as expected; what was not has been printed.
    pub fn end() !void {
        if (test_end() != 0) return error.NotAsExpected;
    }
};

// What lies below.

const no_time = std.math.minInt(i64);

const Bytes = extern struct {
    data: [*]const u8,
    length: usize,

    fn slice(self: Bytes) []const u8 {
        return if (self.length == 0) "" else self.data[0..self.length];
    }
};

fn bytes(slice: []const u8) Bytes {
    return .{ .data = slice.ptr, .length = slice.len };
}

fn encoded(comptime Value: type, value: *const Value) Bytes {
    return if (Value == []const u8) bytes(value.*) else bytes(std.mem.asBytes(value));
}

const RawRecord = extern struct {
    key: Bytes,
    value: Bytes,
    time: i64,

    fn seen(self: *const RawRecord) Record {
        return .{ .key = self.key.slice(), .value = self.value.slice(), .time = if (self.time == no_time) null else self.time };
    }
};

const TableName = extern struct { name: [*:0]const u8, schema_version: u32 };

var rejection: [*:0]const u8 = undefined;

fn reasonOf(result: anyerror!void) ?[*:0]const u8 {
    result catch |failure| return if (failure == error.Rejected) rejection else terminated(@errorName(failure));
    return null;
}

fn terminated(text: []const u8) [*:0]const u8 {
    const memory: [*]u8 = @ptrCast(wasmill_allocate(text.len + 1));
    @memcpy(memory[0..text.len], text);
    memory[text.len] = 0;
    return @ptrCast(memory);
}

fn allocate(_: *anyopaque, length: usize, alignment: std.mem.Alignment, _: usize) ?[*]u8 {
    const address = @intFromPtr(wasmill_allocate(length + alignment.toByteUnits()));
    return @ptrFromInt(alignment.forward(address));
}

extern fn wasmill_allocate(size: usize) *anyopaque;
extern fn wasmill_json_member(object: Bytes, member_name: [*:0]const u8, member: *Bytes) bool;
extern fn wasmill_json_text(member: Bytes, text: *Bytes) bool;
extern fn wasmill_name(function: [*:0]const u8, version: [*:0]const u8) void;
extern fn wasmill_has_table(table: *const TableName) void;
extern fn wasmill_has_port(port_name: [*:0]const u8) void;
extern fn wasmill_open(table: *const TableName) void;
extern fn wasmill_ordered(table: *const TableName) void;
extern fn wasmill_uses(table: [*:0]const u8) void;
extern fn wasmill_get(table: *const TableName, key: Bytes, value: *Bytes) bool;
extern fn wasmill_get_into(table: *const TableName, key: Bytes, value: *anyopaque, size: usize) bool;
extern fn wasmill_put(table: *const TableName, key: Bytes, value: Bytes) void;
extern fn wasmill_delete(table: *const TableName, key: Bytes) void;
extern fn wasmill_emit(key: Bytes, value: Bytes) void;
extern fn wasmill_emit_to(port_name: [*:0]const u8, key: Bytes, value: Bytes, time: i64) void;
extern fn wasmill_lookup(table: [*:0]const u8, key: Bytes, value: *Bytes) bool;
extern fn wasmill_want(table: [*:0]const u8, key: Bytes) void;
extern fn wasmill_update(table: [*:0]const u8, key: Bytes, change: Change, operand: Bytes) void;
extern fn wasmill_send(table: [*:0]const u8, key: Bytes, value: Bytes) void;
extern fn wasmill_log(level: Level, line: Bytes) void;
extern fn wasmill_count(metric: [*:0]const u8, by: u64) void;
extern fn wasmill_gauge(metric: [*:0]const u8, value: f64) void;
extern fn wasmill_at_fault() void;
extern fn wasmill_panic(message: [*:0]const u8) noreturn;
extern fn test_begin_at(file: [*:0]const u8, line: c_int, config: [*:0]const u8) void;
extern fn test_record(key: [*:0]const u8, value: [*:0]const u8) void;
extern fn test_other(table: [*:0]const u8, key: [*:0]const u8, value: [*:0]const u8) void;
extern fn test_batch_at(file: [*:0]const u8, line: c_int) void;
extern fn test_emitted_at(file: [*:0]const u8, line: c_int, index: usize, port_name: [*:0]const u8, key: [*:0]const u8, value: [*:0]const u8) void;
extern fn test_rejected_at(file: [*:0]const u8, line: c_int, index: usize, reason: [*:0]const u8) void;
extern fn test_end() c_int;
