;; WASI's preview 1 with nothing behind it: for language runtimes that insist on having it.
;;
;; What is written to the standard output and error goes to the job's log. There are no arguments, no variables, no files, no sockets. The clock begins at one second and goes on by a
;; microsecond with each look, and by as much as is slept; random numbers are always the same ones. So a function still follows from its records, its config and its state, and an
;; instance that is run again does again what it did.
;;
;; It works on the memory of the function's own module and keeps nothing but two numbers: it must not grow that memory, which a runtime may believe to be its own. What it needs for a line in pieces
;; it has from the function's `cabi_realloc`.
(module
  (import "env" "memory" (memory 0))
  ;; level, text, its length
  (import "wasmill:operator/log@0.1.0" "write" (func $log (param i32 i32 i32)))
  ;; old memory, its size, alignment, new size
  (import "__main_module__" "cabi_realloc" (func $allocate (param i32 i32 i32 i32) (result i32)))

  (global $clock_ns (mut i64) (i64.const 1000000000))
  (global $random (mut i64) (i64.const 0x9E3779B97F4A7C15))

  ;; Where the text that begins at `at` ends: at `end`, or before the first byte that is not UTF-8. A text that is not would be a trap.
  (func $text_end (param $at i32) (param $end i32) (result i32)
    (local $byte i32) (local $more i32) (local $char i32) (local $least i32) (local $next i32)
    (loop $chars
      (if (i32.ge_u (local.get $at) (local.get $end)) (then (return (local.get $end))))
      (local.set $byte (i32.load8_u (local.get $at)))
      (local.set $more (i32.const 0))
      (local.set $least (i32.const 0))
      (local.set $char (local.get $byte))
      (if (i32.ge_u (local.get $byte) (i32.const 0x80)) (then
        (if (i32.eq (i32.and (local.get $byte) (i32.const 0xe0)) (i32.const 0xc0)) (then
          (local.set $more (i32.const 1))
          (local.set $least (i32.const 0x80))
          (local.set $char (i32.and (local.get $byte) (i32.const 0x1f)))))
        (if (i32.eq (i32.and (local.get $byte) (i32.const 0xf0)) (i32.const 0xe0)) (then
          (local.set $more (i32.const 2))
          (local.set $least (i32.const 0x800))
          (local.set $char (i32.and (local.get $byte) (i32.const 0x0f)))))
        (if (i32.eq (i32.and (local.get $byte) (i32.const 0xf8)) (i32.const 0xf0)) (then
          (local.set $more (i32.const 3))
          (local.set $least (i32.const 0x10000))
          (local.set $char (i32.and (local.get $byte) (i32.const 0x07)))))
        (if (i32.eqz (local.get $more)) (then (return (local.get $at))))))
      (if (i32.gt_u (local.get $more) (i32.sub (i32.sub (local.get $end) (local.get $at)) (i32.const 1))) (then (return (local.get $at))))
      (local.set $next (i32.add (local.get $at) (i32.const 1)))
      (block $whole (loop $rest
        (br_if $whole (i32.eqz (local.get $more)))
        (local.set $byte (i32.load8_u (local.get $next)))
        (if (i32.ne (i32.and (local.get $byte) (i32.const 0xc0)) (i32.const 0x80)) (then (return (local.get $at))))
        (local.set $char (i32.or (i32.shl (local.get $char) (i32.const 6)) (i32.and (local.get $byte) (i32.const 0x3f))))
        (local.set $next (i32.add (local.get $next) (i32.const 1)))
        (local.set $more (i32.sub (local.get $more) (i32.const 1)))
        (br $rest)))
      (if (i32.lt_u (local.get $char) (local.get $least)) (then (return (local.get $at))))
      (if (i32.gt_u (local.get $char) (i32.const 0x10ffff)) (then (return (local.get $at))))
      (if (i32.eq (i32.and (local.get $char) (i32.const 0x1ff800)) (i32.const 0xd800)) (then (return (local.get $at))))
      (local.set $at (local.get $next))
      (br $chars))
    unreachable)

  ;; Logs a text without the line ends behind it; nothing of nothing.
  (func $log_line (param $level i32) (param $at i32) (param $end i32)
    (block $trimmed (loop $trim
      (br_if $trimmed (i32.ge_u (local.get $at) (local.get $end)))
      (br_if $trimmed (i32.gt_u (i32.load8_u (i32.sub (local.get $end) (i32.const 1))) (i32.const 0x20)))
      (local.set $end (i32.sub (local.get $end) (i32.const 1)))
      (br $trim)))
    (local.set $end (call $text_end (local.get $at) (local.get $end)))
    (if (i32.lt_u (local.get $at) (local.get $end)) (then
      (call $log (local.get $level) (local.get $at) (i32.sub (local.get $end) (local.get $at))))))

  ;; How many bytes there are in `count` pieces, each an address and a length. They are copied to `to`, if that is not 0.
  (func $gather (param $pieces i32) (param $count i32) (param $to i32) (result i32)
    (local $total i32) (local $length i32)
    (block $done (loop $each
      (br_if $done (i32.eqz (local.get $count)))
      (local.set $length (i32.load offset=4 (local.get $pieces)))
      (if (local.get $to) (then
        (memory.copy (i32.add (local.get $to) (local.get $total)) (i32.load (local.get $pieces)) (local.get $length))))
      (local.set $total (i32.add (local.get $total) (local.get $length)))
      (local.set $pieces (i32.add (local.get $pieces) (i32.const 8)))
      (local.set $count (i32.sub (local.get $count) (i32.const 1)))
      (br $each)))
    (local.get $total))

  (func (export "fd_write") (param $fd i32) (param $pieces i32) (param $count i32) (param $written i32) (result i32)
    (local $at i32) (local $total i32)
    (if (i32.gt_u (i32.sub (local.get $fd) (i32.const 1)) (i32.const 1)) (then (return (i32.const 8))))
    (local.set $total (call $gather (local.get $pieces) (local.get $count) (i32.const 0)))
    (i32.store (local.get $written) (local.get $total))
    (if (i32.eqz (local.get $total)) (then (return (i32.const 0))))
    ;; A runtime that is about to give up, and cannot allocate any more, writes one piece.
    (if (i32.eq (local.get $count) (i32.const 1))
      (then (local.set $at (i32.load (local.get $pieces))))
      (else
        (local.set $at (call $allocate (i32.const 0) (i32.const 0) (i32.const 1) (local.get $total)))
        (drop (call $gather (local.get $pieces) (local.get $count) (local.get $at)))))
    ;; info, or error
    (call $log_line (i32.mul (local.get $fd) (i32.const 2)) (local.get $at) (i32.add (local.get $at) (local.get $total)))
    (i32.const 0))

  (func (export "fd_read") (param $fd i32) (param i32 i32) (param $read i32) (result i32)
    (if (local.get $fd) (then (return (i32.const 8))))
    (i32.store (local.get $read) (i32.const 0))
    (i32.const 0))

  ;; The three standard streams are terminals that can be written.
  (func (export "fd_fdstat_get") (param $fd i32) (param $out i32) (result i32)
    (if (i32.gt_u (local.get $fd) (i32.const 2)) (then (return (i32.const 8))))
    (i64.store (local.get $out) (i64.const 2))
    (i64.store offset=8 (local.get $out) (i64.const 0x40))
    (i64.store offset=16 (local.get $out) (i64.const 0))
    (i32.const 0))

  (func $none (param $count i32) (param $bytes i32) (result i32)
    (i32.store (local.get $count) (i32.const 0))
    (i32.store (local.get $bytes) (i32.const 0))
    (i32.const 0))
  (export "args_sizes_get" (func $none))
  (export "environ_sizes_get" (func $none))
  (func $nothing_to_fill (param i32 i32) (result i32) (i32.const 0))
  (export "args_get" (func $nothing_to_fill))
  (export "environ_get" (func $nothing_to_fill))

  (func (export "clock_res_get") (param i32) (param $out i32) (result i32)
    (i64.store (local.get $out) (i64.const 1000))
    (i32.const 0))
  (func (export "clock_time_get") (param i32 i64) (param $out i32) (result i32)
    (global.set $clock_ns (i64.add (global.get $clock_ns) (i64.const 1000)))
    (i64.store (local.get $out) (global.get $clock_ns))
    (i32.const 0))

  ;; Whatever is waited for first has come. A time is waited for by setting the clock on: `timeout` is at 24, and at 40 whether it is a time of the clock rather than from now on.
  (func (export "poll_oneoff") (param $in i32) (param $out i32) (param $count i32) (param $came i32) (result i32)
    (local $until i64)
    (if (i32.eqz (local.get $count)) (then (return (i32.const 28))))
    (if (i32.eqz (i32.load8_u offset=8 (local.get $in))) (then
      (local.set $until (i64.load offset=24 (local.get $in)))
      (if (i32.eqz (i32.and (i32.load16_u offset=40 (local.get $in)) (i32.const 1))) (then
        (local.set $until (i64.add (local.get $until) (global.get $clock_ns)))))
      (if (i64.gt_u (local.get $until) (global.get $clock_ns)) (then (global.set $clock_ns (local.get $until))))))
    (i64.store (local.get $out) (i64.load (local.get $in)))
    (i64.store offset=8 (local.get $out) (i64.const 0))
    (i64.store offset=16 (local.get $out) (i64.const 0))
    (i64.store offset=24 (local.get $out) (i64.const 0))
    (i32.store8 offset=10 (local.get $out) (i32.load8_u offset=8 (local.get $in)))
    (i32.store (local.get $came) (i32.const 1))
    (i32.const 0))

  (func (export "random_get") (param $at i32) (param $length i32) (result i32)
    (block $done (loop $each
      (br_if $done (i32.eqz (local.get $length)))
      (global.set $random (i64.add (i64.mul (global.get $random) (i64.const 6364136223846793005)) (i64.const 1442695040888963407)))
      (i64.store8 (local.get $at) (i64.shr_u (global.get $random) (i64.const 56)))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (local.set $length (i32.sub (local.get $length) (i32.const 1)))
      (br $each)))
    (i32.const 0))

  (func (export "sched_yield") (result i32) (i32.const 0))
  ;; Ending the process is failing the call.
  (func (export "proc_exit") (param i32) unreachable)
  (func (export "proc_raise") (param i32) (result i32) unreachable)

  ;; There is no other file (8: bad descriptor), and streams have no places (70: illegal seek). Closing and syncing does nothing.
  (func $fine (param i32) (result i32) (i32.const 0))
  (export "fd_close" (func $fine))
  (export "fd_sync" (func $fine))
  (export "fd_datasync" (func $fine))
  (func (export "fd_seek") (param i32 i64 i32 i32) (result i32) (i32.const 70))
  (func (export "fd_tell") (param i32 i32) (result i32) (i32.const 70))
  (func (export "fd_advise") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_allocate") (param i32 i64 i64) (result i32) (i32.const 8))
  (func $no_file_2 (param i32 i32) (result i32) (i32.const 8))
  (export "fd_fdstat_set_flags" (func $no_file_2))
  (export "fd_filestat_get" (func $no_file_2))
  (export "fd_prestat_get" (func $no_file_2))
  (export "fd_renumber" (func $no_file_2))
  (export "sock_shutdown" (func $no_file_2))
  (func $no_file_3 (param i32 i32 i32) (result i32) (i32.const 8))
  (export "fd_prestat_dir_name" (func $no_file_3))
  (export "path_create_directory" (func $no_file_3))
  (export "path_remove_directory" (func $no_file_3))
  (export "path_unlink_file" (func $no_file_3))
  (export "sock_accept" (func $no_file_3))
  (func (export "fd_fdstat_set_rights") (param i32 i64 i64) (result i32) (i32.const 8))
  (func (export "fd_filestat_set_size") (param i32 i64) (result i32) (i32.const 8))
  (func (export "fd_filestat_set_times") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func $no_file_at (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (export "fd_pread" (func $no_file_at))
  (export "fd_pwrite" (func $no_file_at))
  (export "fd_readdir" (func $no_file_at))
  (func $no_file_5 (param i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (export "path_filestat_get" (func $no_file_5))
  (export "path_symlink" (func $no_file_5))
  (export "sock_send" (func $no_file_5))
  (func $no_file_6 (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (export "path_readlink" (func $no_file_6))
  (export "path_rename" (func $no_file_6))
  (export "sock_recv" (func $no_file_6))
  (func (export "path_link") (param i32 i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_open") (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32) (i32.const 8))
  (func (export "path_filestat_set_times") (param i32 i32 i32 i32 i64 i64 i32) (result i32) (i32.const 8))
)
