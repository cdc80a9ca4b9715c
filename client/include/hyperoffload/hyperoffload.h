/* HyperOffload client library, C ABI. SPDX-License-Identifier: Apache-2.0
 * Length: the whole interface in one file, which is its reference.
 *
 * A job connects to a pool, opens a runtime for its device memory, loads the plans that the
 * analyzer made for it, and runs each step op by op:
 *
 *   ho_connect(&options, &pool);
 *   ho_schedule_info(schedule, n, &info);               what the plan needs, before anything exists
 *   ho_open(pool, &memory, &runtime);                   an arena of info.arena_bytes, or callbacks
 *   ho_load(runtime, schedule, n, &plan);
 *   ho_write(plan, id, data, bytes);                    persistent storages: weights, states
 *   for each step:
 *     ho_write(plan, id, data, bytes);                  every INPUT storage
 *     ho_step_begin(plan);
 *     for each position p:
 *       ho_before(plan, p);   kernel on ho_operand(plan, p, id), ...   ho_after(plan, p);
 *     ho_step_end(plan);
 *     ho_read(plan, id, into, bytes);                   results, checkpoints: between steps
 *   ho_close(runtime);                                  ends its plans, too
 *   ho_disconnect(pool);
 *
 * Objects. A pool (ho_pool) is a job's sessions on all nodes, and the transfer thread. A runtime
 * (ho_runtime) is the device memory of one accelerator, the storages whose values come and go
 * there, and where each value is. A plan (ho_plan) is a schedule that was loaded for a runtime;
 * plans of one runtime share persistent storages and the device memory, and take turns. A handle is
 * the caller's until the call that ends it; what is made from an object ends before it does.
 *
 * Threads. One thread at a time drives a runtime and its plans; which one may change from call to
 * call. ho_write of an INPUT may come from one other thread at a time. ho_register, ho_unregister,
 * ho_get, ho_put, ho_wait, ho_test, ho_stage_in and ho_stage_out: one thread at a time per pool.
 * Everything else on a pool: any thread. The library has threads of its own: one that moves bytes,
 * those of local_threads, one that renews leases, one that finds restarted daemons, one for each
 * node's control connection, up to three for each subscriber with relays, and for a moment some
 * that ask nodes. They call the job for log lines alone (ho_set_log).
 *
 * Errors. Every call that can fail returns a status. ho_last_error() says more about the last one
 * that was not HO_OK on the calling thread. A call that is refused (HO_INVALID_ARGUMENT,
 * HO_NOT_FOUND, HO_ALREADY_EXISTS, HO_OUT_OF_RANGE, HO_CONFLICT, HO_UNSUPPORTED) changes nothing.
 * HO_UNAVAILABLE from a runtime or plan, except from ho_load, means that a node is lost that had
 * the only home of some of its values. The failure is permanent: every further call returns the
 * same, and only ho_unload and ho_close are useful. Calls that only report answer as before:
 * ho_get_counters, ho_get_runtime_counters, ho_storage_of, ho_find_storage, those that list a
 * plan's ops and storages, and, if the last step's transfers had ended, ho_get_timeline and
 * ho_write_op_times.
 *
 * Arguments. A pointer that is NULL where no text allows it is refused with HO_INVALID_ARGUMENT. A
 * struct's struct_bytes is its sizeof, set by the caller, so that the struct can grow: fields that
 * the caller's header does not have count as zero, and are not filled in. HO_INVALID_ARGUMENT: it
 * is not set, or ends within a field.
 *
 * Time. A call waits for transfers only where its text says so, and at most until their deadlines.
 * A piece of a transfer (a few MiB) has ho_connect_options.op_deadline_ms from when it is sent;
 * over "tcp" and "ucx" 20 times as long while its node sends or takes bytes. A copy on this machine
 * has 60 s, a stage between flash and memory 10 s. A control request has 2 s, and a grant of memory
 * some more for each GB.
 *
 * fork(). A child process has no transfer thread, so fork before ho_connect. A child of a later
 * fork may only exec or _exit.
 *
 * Signals. The driver "local" maps memory that its daemon may take back. It installs a handler for
 * SIGBUS. A fault inside such memory, during one of the driver's own copies, becomes an error;
 * every other fault goes to the handler that was installed before. If the job installs a handler
 * later, that handler must pass on faults that are not its own. Threads that move bytes block all
 * other signals than SIGBUS and SIGSEGV, the library's other threads all signals.
 *
 * Limits. 4096 transfers started and not yet waited for; 8192 in flight in a pool, including those
 * of plans. 4096 nodes in a pool. 2^50 bytes in an allocation, an arena or a storage. The job needs
 * some file descriptors for each node, and while a call gets memory on the job's own machine, one
 * for each segment: at the limit (ulimit -n) calls that get memory end with HO_EXHAUSTED.
 */
#ifndef HYPEROFFLOAD_HYPEROFFLOAD_H_
#define HYPEROFFLOAD_HYPEROFFLOAD_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HO_API __attribute__((visibility("default")))

/* Same meaning and order as the library's internal error codes. */
typedef enum ho_status {
  HO_OK = 0,
  HO_INVALID_ARGUMENT, /* an argument that is null or not allowed; a schedule that is not legal */
  HO_NOT_FOUND,
  HO_ALREADY_EXISTS,
  HO_OUT_OF_RANGE,
  HO_PERMISSION_DENIED, /* a key or right was revoked, or never given */
  HO_BUSY,              /* a limit is reached for now: try again after waiting for something */
  HO_EXHAUSTED,         /* no memory or flash of this size is left, or no file descriptor */
  HO_UNAVAILABLE,       /* a node is lost */
  HO_DEADLINE,          /* no answer in time */
  HO_CANCELED,
  HO_CORRUPT, /* the bytes are not those that were written */
  HO_UNSUPPORTED,
  HO_CONFLICT, /* the call is out of order: not allowed in this state */
  HO_IO
} ho_status;

typedef struct ho_pool ho_pool;             /* sessions on all nodes, and the transfer thread */
typedef struct ho_allocation ho_allocation; /* bytes of the pool, spread over its nodes */
typedef struct ho_flash ho_flash;           /* bytes of one node's flash */
typedef struct ho_runtime ho_runtime;       /* device memory, and the storages that use it */
typedef struct ho_plan ho_plan;             /* a schedule loaded for a runtime */

/* A storage's number in its runtime, the same in all plans that share it. */
typedef uint32_t ho_storage;

/* For ho_connect. A field that is zero has its default. */
typedef struct ho_connect_options {
  size_t struct_bytes;
  const char* pool;        /* one or more control addresses, comma-separated: "unix:/run/x.sock",
                              "tcp:127.0.0.1:7700"; the first that answers names the other nodes */
  const char* name;        /* the job's name, for display: up to 255 bytes of UTF-8; may be NULL */
  const char* transport;   /* "auto" (also NULL), or the drivers that may be used: "local",
                              "tcp", "ucx", "ofi", "local,tcp". Nodes that these do not reach
                              are left out */
  uint32_t op_deadline_ms; /* deadline of each piece of a transfer (a few MiB), counted from when
                              it is sent, for all drivers except "local"; 0: 1500. Over "tcp" and
                              "ucx" it counts from the last byte that moved, and a piece has 20
                              times as long, or until the lease ends under which it was sent: links
                              are shared. Below 800 a cut link loses the node, even if another link
                              leads to it. "local" copies by itself and waits for no node, so it
                              has no such deadline. Time in which the job was stopped does not
                              count */
  const char* ucx_module;  /* absolute path of the driver "ucx", opened only when it is used; NULL
                              or "": hyperoffload/hyperoffload-ucx.so beside this library */
  /* For "ofi"; each may be NULL or "": chosen to fit the daemon. A daemon that uses another
     provider, or cannot be reached by the domain or interface, is reached by another driver or
     left out. If a node has several rails, only those that can be reached are used. */
  const char* ofi_provider;     /* libfabric's: "verbs", "efa", "cxi" */
  const char* ofi_domain;       /* libfabric's name of a device: "mlx5_0", "eth0" */
  const char* ofi_interface;    /* network interface to go out by: "eth0" */
  uint32_t ofi_allow_emulation; /* 1: also libfabric's TCP ("net", "tcp"), if the daemon allows it
                                   too. For tests, and if all peers are trusted */
  /* For "tcp" and "ofi". */
  uint32_t connections; /* connections to each rail of a node, over which transfers above 64 KiB are
                           spread (small transfers have one more); 0: 1; at most 16 */
  /* For "tcp". */
  const char* tcp_interface; /* network interface to go out by: "eth0"; NULL or "": any */
  /* For "ucx". */
  const char* ucx_devices;      /* "mlx5_0:1" or several, comma-separated, 8 at most, in the order
                                   in which nodes name theirs. Transfers are spread over all; if
                                   one fails, its transfers are repeated over the others. NULL or
                                   "": all that are up */
  const char* ucx_transports;   /* "rc" (also NULL and ""), "dc" or "rc,dc" */
  uint32_t ucx_allow_emulation; /* 1: any of UCX's transports, as "tcp", if the daemon allows it
                                   too. For experiments only: no promise about faults holds */
  uint32_t local_threads;       /* for "local": threads that share copies of 512 KiB and more;
                                   the transfer thread is one of them; 1 .. 4. 0: one, and one
                                   more for every eight cores in the affinity mask. Set 1 under
                                   a processor quota */
  const char* local_numa; /* for "local": the NUMA node that the daemon takes memory from while it
                             has some left there. "auto" (also NULL and ""): for a runtime with an
                             arena, the node that has most of the arena; else the node that the
                             calling thread runs on. A node's number, as "1"; or "off" */
  uint64_t link_bytes_per_s; /* limits the job's gets and its puts to this rate each, over all nodes
                                together; moves between flash and pool memory do not count.
                                0: no limit */
  const char* tls; /* over TCP: the folder of the job's certificate, key and authority: node.crt,
                      node.key and ca.crt, as "hyperoffload ca issue" writes them. They are read at
                      each new connection. NULL or "": no TLS, which only a daemon with `insecure`
                      accepts. Unix sockets need none */
  uint32_t repair_after_ms; /* so long after a node is lost, values that had one of two homes
                               there get another, if a node has memory for it; at steps' borders,
                               for a quarter of a step's time and one value more. 0: 60 s */
  uint64_t wait_ms; /* so long ho_allocate and its like, ho_load, ho_evict, ho_flash_allocate
                       and ho_publisher_open wait for memory or flash that others hold, before
                       they end with HO_EXHAUSTED. The job keeps what it has meanwhile. Two
                       jobs that wait for each other both wait in vain. A call fails at once
                       if it needs more than all nodes have together, or if a part that must
                       lie on one node is larger than any node, but not while a node is out of
                       reach. 0: they do not wait */
} ho_connect_options;

/* The header's version, and the library's. */
#define HO_VERSION_MAJOR 0
#define HO_VERSION_MINOR 1
#define HO_VERSION_PATCH 0
HO_API const char* ho_version(void);
/* Never NULL; "unknown" for a number that is not a status. */
HO_API const char* ho_status_name(ho_status status);
/* Text about this thread's last call that was not HO_OK; valid until its next one; never NULL. */
HO_API const char* ho_last_error(void);

typedef enum ho_log_level {
  HO_LOG_DEBUG = 0,
  HO_LOG_INFO = 1,
  HO_LOG_WARNING = 2,
  HO_LOG_ERROR = 3
} ho_log_level;
/* Sets what the library logs in this process, for all pools: lines of level `least` and above,
 * until then HO_LOG_INFO. They tell what no call returns, as that a node is lost. The environment
 * variable HYPEROFFLOAD_LOG ("debug", "info", "warning", "error") has precedence over `least`;
 * ho_connect looks at it, too.
 *
 * line: takes each line, without time and level, in place of stderr; NULL: stderr. The text is
 * valid until `line` returns. Any thread calls it, the library's own ones too, for one line at a
 * time; transfers may wait for it. It must not call the library, and not throw. Once ho_set_log
 * returns, the function before is not called any more; `context` must live until then, or until the
 * last pool has ended. A forked child must not call it. Any thread, also before ho_connect.
 *
 * HO_INVALID_ARGUMENT  not a level, also in the variable; `line` NULL counts all the same. */
HO_API ho_status ho_set_log(ho_log_level least,
                            void (*line)(void* context, ho_log_level level, const char* text),
                            void* context);

/* Opens a session on every node of a pool, and starts the library's threads. These threads, and the
 * copies that "local" makes, have the calling thread's processor affinity: pin it before this call.
 * If a node's best driver does not reach it, the next one is tried. A node that no allowed driver
 * reaches, or that does not answer within 2 s, is left out. Both log a warning with the reason.
 * Nodes that do not answer are waited for together, up to 64 at a time.
 * ho_open and ho_load use nodes that have come since, or are back, by "tcp" and the drivers in use
 * by then; where nodes do not answer that takes up to 2 s. So do ho_allocate, ho_allocate_among and
 * ho_flash_allocate before they fail for want of nodes, memory or flash; a node that was tried in
 * vain rests for up to 5 min.
 *
 * HO_OK                *out is the caller's until ho_disconnect.
 * HO_INVALID_ARGUMENT  an option, or HYPEROFFLOAD_LOG, that cannot be read or is out of its range;
 *                      an interface that is not there.
 * HO_UNAVAILABLE, HO_DEADLINE   no node is left.
 * HO_UNSUPPORTED       no node can be reached by the drivers allowed, with the reason.
 * HO_PERMISSION_DENIED the daemon does not admit this user, or one end refuses the other's
 *                      certificate.
 * HO_EXHAUSTED         the nodes have no room for one more session of this user. */
HO_API ho_status ho_connect(const ho_connect_options* options, ho_pool** out);
/* Ends all sessions, and so gives back everything that the job holds in the pool except durable
 * flash. Waits for transfers that were started and not waited for, and up to a second for each
 * node.
 *
 * HO_OK        the handle is gone. NULL is allowed and does nothing.
 * HO_CONFLICT  a runtime, a block store, a publisher or a subscriber is open, or an allocation not
 *              freed: nothing was done. */
HO_API ho_status ho_disconnect(ho_pool* pool);
/* Name of the driver that carries the data: "local", "ucx", "ofi" or "tcp"; "mixed" if nodes are
 * reached by several. The text lives as long as the pool. "" for NULL. */
HO_API const char* ho_pool_transport(const ho_pool* pool);

/* Some of a pool's nodes. */
typedef enum ho_nearness {
  HO_ALL_NODES = 0,
  HO_NEAR_NODES = 1, /* on this machine, reached by "local" */
  HO_FAR_NODES = 2   /* all others */
} ho_nearness;
/* What nodes can give to jobs now, all together. Lost and drained nodes give nothing. */
typedef struct ho_pool_room {
  size_t struct_bytes;
  uint32_t nodes;           /* that are not lost */
  uint32_t failure_domains; /* racks, or machines, that these nodes are in */
  uint64_t ddr_bytes;       /* in whole segments */
  uint64_t flash_bytes;
} ho_pool_room;
/* Asks the nodes; where some do not answer that takes up to 2 s. */
HO_API ho_status ho_pool_get_room(ho_pool* pool, ho_nearness which, ho_pool_room* out);

/* What the daemons have told the job about their future. What others have room for moves off a
 * drained node: what plans keep there, at steps' borders; memory of ho_allocate, on a thread of the
 * library. Memory of ho_allocate_beside and flash of ho_flash_allocate stay: the job gives them
 * back, or it writes a checkpoint and ends. Until then the administrator waits. */
typedef struct ho_pool_notice {
  size_t struct_bytes;
  uint32_t drained_nodes; /* an administrator empties them: they give nothing new. Lost nodes do not
                             count */
  uint32_t ending_nodes;  /* their daemons end, with all that the job has there */
  uint64_t ending_ms;     /* until the first of these ends; 0 if there is none */
  uint64_t changes;       /* how often any of this has changed since ho_connect: a job that has seen
                             a number acts again when there is another */
} ho_pool_notice;
/* Does not wait, and asks nobody: it has what the last renewals of the leases brought, so it is as
 * old as a third of a lease, 3 s with the daemons' default. Any thread; cheap enough for each step.
 */
HO_API ho_status ho_pool_get_notice(const ho_pool* pool, ho_pool_notice* out);

/* --- plain one-sided access (what plans do by themselves) --- */

/* Allocates pool memory, zeroed, in whole segments of its nodes (256 MiB, unless a daemon's
 * settings differ). Waits for the nodes. Segments on nodes that are drained later move to others,
 * while no transfer uses the allocation: ho_get, ho_put and ho_free wait for a segment that moves,
 * as long as its bytes take to pass through this process.
 *
 * HO_OK                *out is the caller's until ho_free.
 * HO_INVALID_ARGUMENT  0 bytes.
 * HO_EXHAUSTED         "needs X, pool has Y on nodes ...".
 * HO_UNAVAILABLE, HO_DEADLINE   no node answers, also not for a new session. */
HO_API ho_status ho_allocate(ho_pool* pool, uint64_t bytes, ho_allocation** out);
/* The same on nodes of one kind only. HO_NOT_FOUND: the pool has none of it. */
HO_API ho_status ho_allocate_among(ho_pool* pool, ho_nearness which, uint64_t bytes,
                                   ho_allocation** out);
/* Waits for transfers that use the allocation, then gives it back. NULL is allowed. Nothing happens
 * if it is another pool's. */
HO_API void ho_free(ho_pool* pool, ho_allocation* allocation);
/* Registers host memory for ho_get and ho_put, to exist until ho_unregister. May take time if a
 * device pins it.
 * HO_INVALID_ARGUMENT   0 bytes, or more than 2^50 or than the address space has.
 * HO_ALREADY_EXISTS     the memory overlaps registered memory.
 * HO_EXHAUSTED, HO_IO   a driver cannot register it. */
HO_API ho_status ho_register(ho_pool* pool, void* base, size_t bytes);
/* Ends a registration, by the address given to ho_register. Waits for transfers that use the
 * memory; their tickets stay valid.
 *
 * HO_NOT_FOUND  no memory is registered at this address.
 * HO_CONFLICT   blocks that are not drained, open publishers or subscribers use it. */
HO_API ho_status ho_unregister(ho_pool* pool, void* base);
/* Start a transfer of at least one byte between registered memory and an allocation. Do not wait,
 * except while a segment of it leaves a drained node: for its copy, and some seconds where nodes do
 * not answer. Transfers have no order among each other.
 *
 * HO_OK    *ticket is for ho_wait, which must be called once. Until ho_wait, or a ho_test that
 *          reports done, the memory belongs to the library: a get may have written any part of it,
 *          a put may still read it. When a get is done, all bytes have arrived. When a put is done,
 *          its bytes are visible at the node: each transfer that starts afterwards, of any job that
 *          shares the memory, reads the new bytes.
 * HO_INVALID_ARGUMENT  no bytes, memory that is not registered as a whole, or another pool's
 *                      allocation.
 * HO_OUT_OF_RANGE      the range leaves the allocation.
 * HO_BUSY              4096 transfers are started and not waited for. */
HO_API ho_status ho_get(ho_pool* pool, ho_allocation* from, uint64_t offset, void* into,
                        size_t bytes, uint64_t* ticket);
HO_API ho_status ho_put(ho_pool* pool, ho_allocation* to, uint64_t offset, const void* from,
                        size_t bytes, uint64_t* ticket);
/* Waits for one transfer and gives its outcome; the ticket ends.
 *
 * HO_OK                all bytes have moved.
 * HO_NOT_FOUND         ho_wait was called for it before.
 * HO_INVALID_ARGUMENT  another pool's ticket, or none.
 * HO_UNAVAILABLE, HO_DEADLINE   the node is lost, or did not answer: any part may have moved. With
 *                      a driver between nodes, the node is lost to this job from then on.
 * HO_PERMISSION_DENIED the daemon took the memory back. */
HO_API ho_status ho_wait(ho_pool* pool, uint64_t ticket);
/* *done: 1 if ho_wait would return at once. The ticket stays. It refuses what ho_wait refuses. */
HO_API ho_status ho_test(ho_pool* pool, uint64_t ticket, int* done);

/* --- plain access to flash --- */

/* A call that is given a pool and another pool's flash or allocation ends with
 * HO_INVALID_ARGUMENT.
 *
 * Flash is reached through memory of the node that has it: stage in, then get; put, then stage out.
 * One allocation lies on one node.
 *
 * Each allocation has its own policy. A job may have checkpoints that must outlive it, and
 * activations that need not. It pays for safety, a sync and a log record, only where it asks for
 * it. */
typedef enum ho_flash_policy {
  HO_FLASH_SCRATCH = 0, /* freed when the job disconnects; a stage_out is done when the device has
                           accepted the bytes */
  HO_FLASH_DURABLE = 1  /* stays until ho_flash_free, until an administrator frees it, or until no
                           job had it open for the daemon's flash_unused_s_max (0, the default:
                           never); a stage_out is done when the bytes survive a crash and a power
                           cut */
} ho_flash_policy;

/* Takes flash of the node that has most of it free. Bytes that were never staged out cannot be
 * staged in: the stage ends with HO_NOT_FOUND.
 *
 * HO_OK                *out is the caller's until ho_flash_free or ho_flash_close.
 * HO_INVALID_ARGUMENT  0 bytes, or no such policy.
 * HO_UNSUPPORTED       no node has flash.
 * HO_UNAVAILABLE       no node that the job reaches has flash, and it could not reach all: one was
 *                      drained, say, when it connected. ho_last_error names them. Or all that have
 *                      flash are drained.
 * HO_EXHAUSTED         no node has so much free flash.
 * HO_DEADLINE          the node does not answer; scratch that it may have taken ends with the job.
 */
HO_API ho_status ho_flash_allocate(ho_pool* pool, uint64_t bytes, ho_flash_policy policy,
                                   ho_flash** out);
/* Gives flash back, durable or not. Wait for stages that use it before.
 *
 * HO_OK           the handle is gone, too. NULL is allowed and does nothing.
 * On any other status the handle stays, for another attempt or ho_flash_close:
 * HO_DEADLINE     its node does not answer, but may still free it.
 * HO_UNAVAILABLE  its node is lost, or the session there has ended: durable flash stays.
 * HO_NOT_FOUND    it is already freed, perhaps by an attempt that ended with HO_DEADLINE. */
HO_API ho_status ho_flash_free(ho_pool* pool, ho_flash* flash);
/* Ends only the handle: durable flash stays. NULL is allowed. */
HO_API void ho_flash_close(ho_flash* flash);
/* Writes the name by which a later job opens durable flash, also after a restart of the daemon. The
 * name is a secret. room: HO_FLASH_NAME_BYTES suffice, including the closing zero.
 * HO_OUT_OF_RANGE: it is too little. */
#define HO_FLASH_NAME_BYTES 48
HO_API ho_status ho_flash_name(const ho_pool* pool, const ho_flash* flash, char* out, size_t room);
/* Opens durable flash by its name. HO_NOT_FOUND: no such node in the pool, or no such flash on it.
 * HO_INVALID_ARGUMENT: not a name. HO_UNAVAILABLE: the node is lost, or the session there has
 * ended. HO_DEADLINE: the node does not answer. */
HO_API ho_status ho_flash_open(ho_pool* pool, const char* name, ho_flash** out);
/* 0 for NULL. */
HO_API uint64_t ho_flash_bytes(const ho_flash* flash);
/* Allocates pool memory on the node that has this flash, so that bytes can be staged between them.
 * Outcomes as ho_allocate. */
HO_API ho_status ho_allocate_beside(ho_pool* pool, const ho_flash* flash, uint64_t bytes,
                                    ho_allocation** out);
/* Start a move between flash and pool memory; the ticket is for ho_wait and ho_test. The range of
 * pool memory belongs to the library until the move is done. Divide a long move into parts: each
 * part can be used when it is done. Take memory by ho_allocate_beside: other memory may leave the
 * node when that is drained.
 *
 * HO_OUT_OF_RANGE      either range leaves its allocation.
 * HO_INVALID_ARGUMENT  no bytes, or the memory lies on another node than the flash.
 * HO_BUSY              as for ho_get: stages count among its 4096 transfers.
 * From ho_wait: HO_DEADLINE  the bytes may still move: do not use the memory again.
 *               HO_EXHAUSTED  the path's write budget of today is used up; anew at midnight UTC.
 *               HO_BUSY  the node was busy until the deadline: nothing moved, try again.
 *               HO_CORRUPT, HO_IO  the text names node, path, extent and block.
 *               HO_NOT_FOUND  a block that was never staged out. */
HO_API ho_status ho_stage_in(ho_pool* pool, const ho_flash* from, uint64_t flash_offset,
                             ho_allocation* into, uint64_t offset, size_t bytes, uint64_t* ticket);
HO_API ho_status ho_stage_out(ho_pool* pool, ho_flash* to, uint64_t flash_offset,
                              const ho_allocation* from, uint64_t offset, size_t bytes,
                              uint64_t* ticket);

/* --- runtimes --- */

/* The device whose memory holds the device bytes. */
typedef enum ho_device_kind {
  HO_DEVICE_HOST = 0, /* plain memory of the processor in place of an accelerator's */
  HO_DEVICE_CUDA = 1  /* an NVIDIA device, by the driver API of CUDA 11.7 or later */
} ho_device_kind;

/* Where a runtime's device bytes are: in an arena, at the offsets that plans give, or in memory
 * that the job gives by callbacks, for frameworks that allocate by themselves. Set exactly one of
 * the two. */
typedef struct ho_device_memory {
  size_t struct_bytes;
  /* The arena: aligned to the schedules' align_bytes (64), at least the largest arena_bytes of the
     plans. It belongs to the runtime until ho_close; its content between steps is not defined. */
  void* arena;
  size_t arena_bytes;
  /* The callbacks. take: returns memory for `bytes` of a storage, or NULL if there is none, see
     ho_before. drop: takes back memory that take gave or ho_adopt named. The library calls both on
     the thread that drives the runtime, inside that thread's calls: all of a plan or runtime but
     ho_close, ho_declare, ho_undeclare, ho_peek, ho_step_end, and those that list, count or return
     a number. They must not call the runtime. Between take and drop the library may read and write
     the memory at any time. On an accelerator the memory is one that work of `stream` may use, as a
     framework's allocator gives it: what was queued there before may still use it. */
  void* (*take)(void* context, ho_storage storage, uint64_t bytes);
  void (*drop)(void* context, ho_storage storage, void* memory);
  void* context;
  /* An accelerator, see below. All zero: the processor's memory. */
  uint32_t kind;    /* ho_device_kind */
  uint32_t ordinal; /* the device's number, from 0, as the driver counts */
  void* stream;     /* the job's stream: a CUstream or cudaStream_t; NULL: the legacy default
                       stream. It belongs to the job and must exist until ho_close */
  const char* cuda_library; /* path or name of the driver's library; NULL or "": libcuda.so.1 */
  uint32_t copies; /* with callbacks: homes, on different nodes, of what no plan has given homes, as
                      declared storages, and values of a step that was left: 1 (also 0) or 2. Where
                      all nodes but one are lost, new ones get one home */
} ho_device_memory;

/* Accelerators. With HO_DEVICE_CUDA the arena, or the memory that callbacks give, is device memory
 * of the device `ordinal`, as cuMemAlloc and cudaMalloc give it, and all kernels of the job's steps
 * run on `stream`. The calls of a step then do not wait for the device, but put the device's work
 * in order:
 *
 *   ho_before      makes `stream` wait for the position's transfers; queue the kernel after it.
 *                  It waits itself only while these transfers are not queued yet: at most 256
 *                  copies of up to 16 MiB in each direction are queued and not ended.
 *   ho_after       call it once the kernel is queued. Transfers that come after the op wait for it
 *                  on the device. It waits itself only while 2048 such ops have not ended.
 *   ho_step_begin  and ho_step_end do not wait for `stream`. The first step of a run comes after
 *                  all work that was queued on `stream` before.
 *
 * ho_write of an INPUT waits until the device has read the value of two steps before. ho_write of a
 * persistent storage, ho_read, ho_sync, ho_get_storage, ho_leave, and ho_step_begin of another plan
 * wait for transfers, and so for the kernels before them on `stream`. If a kernel on another stream
 * uses operands, order it with `stream` by the job's own events.
 *
 * With callbacks: memory is dropped once the device has copied from it; where the next op needs the
 * room before, `stream` waits for that. Copies come after all work that was queued on `stream` when
 * take() returned. ho_adopt names a value that the work queued so far leaves there. ho_fetch,
 * ho_evict and ho_peek wait for the device.
 *
 * Threads. For its own calls the library makes the device's primary context current, which the CUDA
 * runtime shares. It then restores the context that the job's thread had; the transfer thread keeps
 * the primary one. The job needs no other context.
 *
 * Copies use two streams of the library, one for each direction. Pool memory of this node is pinned
 * (cuMemHostRegister) while it is granted; the driver may need some time for that in ho_load. Bytes
 * from and to other machines pass through 64 MiB of pinned host memory. For a position that reads
 * bytes from there, ho_before waits until they have arrived on this machine and their copies are
 * queued. So a kernel never reads bytes that a lost node still owes. For a position that overwrites
 * bytes that go there, ho_before waits until they have arrived there.
 *
 * Times. ho_counters and ho_span give the times at which the job's thread queued ops and copies,
 * not when the device ran them; stall is the time that the job's thread waited.
 *
 * Errors. A failure of the device, such as a faulting kernel, ends the runtime: HO_UNAVAILABLE,
 * with the driver's text. */

/* HO_OK                *out is the caller's until ho_close.
 * HO_INVALID_ARGUMENT  an unknown kind; neither arena nor both callbacks, or all; an arena that is
 *                      not memory of the device, or of more than 2^50 bytes; more copies than 2,
 *                      or 2 with an arena.
 * HO_UNSUPPORTED       there is no driver or no GPU, or the driver is too old; the text says what
 *                      to do.
 * HO_NOT_FOUND         no device with this ordinal.
 * HO_ALREADY_EXISTS    the arena overlaps that of an open runtime.
 * HO_UNAVAILABLE       no node is left.
 * HO_EXHAUSTED         2 copies, and the job reaches one node only.
 * HO_EXHAUSTED, HO_IO  a driver cannot register the arena. */
HO_API ho_status ho_open(ho_pool* pool, const ho_device_memory* memory, ho_runtime** out);
/* Ends a runtime and all its plans, whose handles end too, also in a step. Queued transfers are not
 * sent; the call waits for those in flight. Values are lost: ho_read those to keep before. No
 * callback is called: memory on the device still belongs to the job. NULL is allowed. */
HO_API void ho_close(ho_runtime* runtime);

/* What a schedule needs, for a caller that has neither pool nor runtime yet. */
typedef struct ho_schedule_needs {
  size_t struct_bytes;
  uint64_t arena_bytes;         /* size of the arena; with callbacks: peak of bytes on the device */
  uint64_t device_budget_bytes; /* budget that the schedule was planned for */
  uint64_t align_bytes;         /* alignment of the arena and of every storage in it */
  uint64_t local_ddr_bytes;     /* homes, as planned, per tier. A runtime takes more: an INPUT */
  uint64_t remote_ddr_bytes;    /* has two homes, and a persistent storage's home is not shared */
  uint64_t flash_bytes;
  uint64_t persistent_bytes; /* all storages whose values outlive a step */
  uint64_t input_bytes;      /* all storages that the job supplies before each step */
  uint64_t step_ns;          /* predicted, in the steady state */
  uint64_t stall_ns;         /* the part of it in which ops wait for transfers */
  uint32_t positions;
  uint32_t cache_ops;
  uint32_t storages;
} ho_schedule_needs;
/* Reads the bytes of a .hos file. Unlike ho_load it does not prove that the schedule is legal.
 * HO_CORRUPT: not a schedule. HO_UNSUPPORTED: another format version. */
HO_API ho_status ho_schedule_info(const void* schedule, size_t schedule_bytes,
                                  ho_schedule_needs* out);

/* --- plans --- */

/* Proves a schedule legal and finds homes for its storages. Between steps of the runtime. Waits for
 * the nodes that give memory.
 *
 * Plans share persistent storages by name: one that an earlier plan has, or that was declared,
 * keeps its value and its home, which moves between memory and flash if no loaded plan has it. A
 * new one is zeros until it is written. Storages that do not outlive a step have homes in memory
 * that all plans of the runtime share, except in plans with homes on flash.
 *
 * schedule: the bytes of a .hos file, not kept.
 *
 * HO_OK                *out is the caller's until ho_unload, or ho_close of the runtime.
 * HO_INVALID_ARGUMENT  it is not legal: the text names the broken rule and the two parties; the
 *                      arena is too small or not aligned; two persistent storages have one name.
 * HO_CORRUPT           not a schedule.
 * HO_UNSUPPORTED       another format version; homes on flash, and no node has flash.
 * HO_CONFLICT          a step runs; a persistent storage has another size than in an earlier plan,
 *                      another number of homes, or its home on another tier in a loaded plan.
 * HO_EXHAUSTED         its homes do not fit the pool, or two homes find no nodes that are apart.
 * HO_UNAVAILABLE, HO_DEADLINE   nodes that should give memory or flash are lost or do not answer.
 *                      The runtime goes on: load again, unless it had failed before. */
HO_API ho_status ho_load(ho_runtime* runtime, const void* schedule, size_t schedule_bytes,
                         ho_plan** out);
/* Ends a plan, also in a step: queued transfers are not sent, and the call waits for those in
 * flight. Values of persistent storages stay where they are and belong to the runtime; those of an
 * unfinished step are lost as by ho_leave. Memory that `take` gave for others, or that ho_adopt
 * named, is the job's again without a call of `drop`. The handle is gone, whatever the outcome.
 * HO_OK also for a runtime that has failed, and for NULL. */
HO_API ho_status ho_unload(ho_plan* plan);

HO_API uint32_t ho_position_count(const ho_plan* plan);
/* The graph's id and name of the op at a position; 0 and "" for a position that the plan does not
 * have. The text lives as long as the plan. */
HO_API uint32_t ho_position_op(const ho_plan* plan, uint32_t position);
HO_API const char* ho_position_name(const ho_plan* plan, uint32_t position);
HO_API uint32_t ho_cache_op_count(const ho_plan* plan);

/* A storage as the graph has it; the texts live as long as the plan. */
typedef struct ho_storage_info {
  size_t struct_bytes;
  uint32_t id;
  uint32_t persistent; /* 1: its value outlives a step */
  uint64_t bytes;
  const char* name; /* "#" and the id if the graph gives none */
  const char* kind; /* "WEIGHT", "INPUT", ...; "KIND_UNSPECIFIED" */
} ho_storage_info;
/* A plan's storages, by rising id. HO_OUT_OF_RANGE: `index` is not below ho_storage_count. */
HO_API uint32_t ho_storage_count(const ho_plan* plan);
HO_API ho_status ho_get_storage_info(const ho_plan* plan, uint32_t index, ho_storage_info* out);

/* --- values --- */

/* Writes a storage's value, by the graph's id of the storage. The library does not use `data` after
 * the call returns.
 *
 * A persistent storage: between steps; the next step of any plan finds the value. Waits until
 * transfers of the storage that are in flight have ended.
 * An INPUT: sets the value for the plan's next step that has not begun; the last one counts. Also
 * while a step runs, and then also from another thread. Waits until nothing uses the value of two
 * steps before.
 *
 * HO_NOT_FOUND         the plan has no storage with this id.
 * HO_INVALID_ARGUMENT  `bytes` is not the storage's size; it is neither persistent nor an INPUT.
 * HO_CONFLICT          a step runs (persistent storages). */
HO_API ho_status ho_write(ho_plan* plan, uint32_t storage_id, const void* data, size_t bytes);
/* Reads a persistent storage's latest value, wherever it is: a weight's, or an OUTPUT's of the step
 * that ended last. Between steps; it does not end the run. Waits as ho_write does. A value that is
 * only on the device is stored first.
 *
 * HO_NOT_FOUND         as for ho_write.
 * HO_INVALID_ARGUMENT  `bytes` is not the storage's size; it is not persistent, as an INPUT.
 * HO_CONFLICT  a step runs; or the storage has no value, since a step that ended by ho_leave would
 *              have overwritten it, or the job freed its last copy. */
HO_API ho_status ho_read(ho_plan* plan, uint32_t storage_id, void* into, size_t bytes);
/* The same for at least one byte of a persistent storage, from `offset` on, as a part of a
 * checkpoint. Any alignment. A write keeps the value's other bytes. A value that is only on the
 * device is stored first, as a whole, also by a read.
 *
 * HO_OUT_OF_RANGE      the range leaves the storage.
 * HO_INVALID_ARGUMENT  also 0 bytes, or a part of an INPUT.
 * HO_CONFLICT          also a write of a part where the storage has no value. */
HO_API ho_status ho_write_range(ho_plan* plan, uint32_t storage_id, uint64_t offset,
                                const void* data, size_t bytes);
HO_API ho_status ho_read_range(ho_plan* plan, uint32_t storage_id, uint64_t offset, void* into,
                               size_t bytes);
/* Stores the latest value of every persistent storage of the runtime at home, by the running plan's
 * epilogue. Between steps. Values on the device stay there, and the next step fetches only the
 * others. Prefetches for that step which have not begun will begin with it. HO_CONFLICT: a step
 * runs. HO_EXHAUSTED: the pool has no room for the home of a declared storage on the device. */
HO_API ho_status ho_sync(ho_runtime* runtime);

/* --- steps --- */

/* Begins a step. A plan's run begins with its first step, with a step after another plan's, and
 * with a step after ho_sync or another call that ends a run. When a run begins, values stay that
 * the plan wants on the device and that are there (in an arena: at the same offset); its prologue
 * brings all others, beside the first ops. Values that it does not want there leave, and are stored
 * first if their home is out of date. Waits only for those stores.
 *
 * HO_CONFLICT  a step runs; an INPUT was not written for this step; a storage that the plan reads
 *              has no value (see ho_read).
 * HO_EXHAUSTED as for ho_sync. */
HO_API ho_status ho_step_begin(ho_plan* plan);
/* Waits until every operand of the position is in place; the wait is counted as stall. Positions go
 * 0, 1, 2, ... in a step. If there is nothing to wait for, it takes no lock and makes no system
 * call.
 *
 * HO_CONFLICT   out of order.
 * HO_EXHAUSTED  take() gave no memory for a storage, which the text names. Nothing has failed: free
 *               some memory and call again for the same position. */
HO_API ho_status ho_before(ho_plan* plan, uint32_t position);
/* The operand's address at this position, from its ho_before to its ho_after; NULL if the op has no
 * such operand, or if the job has yet to place it (ho_adopt). At any other time: NULL in an arena;
 * with callbacks, the memory that the storage has then. */
HO_API void* ho_operand(const ho_plan* plan, uint32_t position, uint32_t storage_id);
/* Reports that the op has ended: its operands belong to the library again. With callbacks, before
 * this call, the job calls ho_adopt for every storage that the op writes and that was not on the
 * device. It also frees each storage that no later op of the step needs and that does not outlive
 * the step, so that the plan's next transfers have room: also INPUTs, whose memory take() gave. The
 * plan knows that, so without ho_forget.
 *
 * HO_CONFLICT  out of order; a storage that the op writes has no address. Nothing has changed. */
HO_API ho_status ho_after(ho_plan* plan, uint32_t position);
/* Ends the step. Does not wait. HO_CONFLICT: positions are left, or no step of this plan runs. */
HO_API ho_status ho_step_end(ho_plan* plan);
/* Ends a step at any position, as after an exception: the job runs the rest of it without the plan.
 * An op that has begun and not ended counts as not run. Queued transfers are not sent; the call
 * waits for those in flight. Persistent storages keep their values, wherever they are, except that
 * one which the rest of the step would have overwritten unread may have none. Values that do not
 * outlive the step are lost in an arena. With callbacks they stay where they are until the next
 * step of a plan begins: on the device as the job's memory, or in the pool for ho_fetch. Before
 * that step the job calls ho_forget for those on the device, and frees them.
 * HO_CONFLICT: no step of this plan runs. */
HO_API ho_status ho_leave(ho_plan* plan);

/* --- storages where the job places device bytes --- */

/* A runtime with callbacks takes and drops memory as its plans say. The calls below are for other
 * times: before the first plan, between steps, and after ho_leave. For a storage of the running
 * plan they end its run, except ho_peek, and ho_get_storage unless its home is on flash; the next
 * ho_step_begin begins a new one. While a step runs they return HO_CONFLICT for storages of its
 * plan, except ho_peek and, within an op, ho_adopt. ho_undeclare and ho_get_storage return it for
 * every storage then. HO_NOT_FOUND: no storage has this number. For a runtime with an arena they
 * return HO_UNSUPPORTED, except ho_storage_of, ho_find_storage and ho_get_storage. */

/* The number of a plan's storage. Persistent storages have one; with callbacks, all. HO_NOT_FOUND:
 * the plan has no storage with this id, or it has no number. */
HO_API ho_status ho_storage_of(const ho_plan* plan, uint32_t storage_id, ho_storage* out);
/* The number of a persistent storage by name. HO_NOT_FOUND: no plan and no ho_declare has used this
 * name. */
HO_API ho_status ho_find_storage(const ho_runtime* runtime, const char* name, ho_storage* out);
/* Declares a storage that no plan has. It is not on the device and has no value until ho_adopt. A
 * plan that is loaded later and has a persistent storage of this name shares it. name: NULL or ""
 * if no plan will have it. Its home is allocated when it is first evicted: in memory, or on flash
 * (scratch) where memory is full and `copies` is 1.
 * HO_ALREADY_EXISTS: there is one with this name. HO_INVALID_ARGUMENT: 0, or beyond 2^50 bytes. */
HO_API ho_status ho_declare(ho_runtime* runtime, const char* name, uint64_t bytes, ho_storage* out);
/* Forgets a declared storage; its memory on the device belongs to the job.
 * HO_CONFLICT: a loaded plan has it. */
HO_API ho_status ho_undeclare(ho_runtime* runtime, ho_storage storage);
/* Reports that the storage's latest value is at `memory`, which the job has allocated or written
 * to; its home is out of date from then on. Within an op, call it for each storage that the op
 * writes and that is not on the device. It replaces an earlier address, which the job frees itself.
 * HO_CONFLICT: a step runs whose plan has the storage, and the op that runs does not write it. */
HO_API ho_status ho_adopt(ho_runtime* runtime, ho_storage storage, void* memory);
/* Reports that the job has freed, or frees, the storage's device memory. If the home was up to
 * date, it has the latest value; otherwise the storage has none until ho_write or ho_adopt. */
HO_API ho_status ho_forget(ho_runtime* runtime, ho_storage storage);
/* Brings the storage to the device: takes memory if it has none there, and waits for the transfer.
 * *memory: its address; `memory` may be NULL. HO_EXHAUSTED: take() gave no memory. HO_CONFLICT: see
 * above; or the storage has no value. */
HO_API ho_status ho_fetch(ho_runtime* runtime, ho_storage storage, void** memory);
/* Within a step, between its ops: copies the latest value of a storage of the step's plan to
 * `into`, from wherever it is. For work that the plan does not have, as writing a tensor's norm to
 * a log. The step goes on as if nothing had happened. `into` may be the storage's own memory, also
 * while a prefetch fills it. Waits for the transfer from the pool. On an accelerator `into` is
 * memory of the device: the storage's own, or other memory while the value is off the device.
 *
 * HO_INVALID_ARGUMENT  `bytes` is not the storage's size.
 * HO_CONFLICT          no step of a plan with this storage runs; an op runs; or the storage has no
 *                      value, since the step has not written it.
 * HO_UNSUPPORTED       the device memory is an arena; or, on an accelerator, `into` is other memory
 *                      and the value is on the device. */
HO_API ho_status ho_peek(ho_runtime* runtime, ho_storage storage, void* into, size_t bytes);
/* Takes the storage off the device: stores it if its home is out of date, waits, and drops the
 * memory. HO_EXHAUSTED: the pool has no room for its home. */
HO_API ho_status ho_evict(ho_runtime* runtime, ho_storage storage);

typedef struct ho_storage_state {
  size_t struct_bytes;
  uint64_t bytes;
  void* memory;       /* on the device, if the job places device bytes; else NULL */
  uint32_t on_device; /* 1: its latest value is there */
  uint32_t at_home;   /* 1: its latest value is at home. Both may be 1. Both 0: it has none */
} ho_storage_state;
/* Reports where a storage's latest value is. Between steps; also allowed with an arena. Waits until
 * transfers of the storage have ended. */
HO_API ho_status ho_get_storage(ho_runtime* runtime, ho_storage storage, ho_storage_state* out);

/* --- what was measured --- */

typedef struct ho_counters {
  size_t struct_bytes;
  uint64_t steps;          /* complete steps of this plan */
  uint64_t stall_ns;       /* all steps */
  uint64_t prefetch_bytes; /* pool -> device */
  uint64_t store_bytes;    /* device -> pool */
  uint64_t last_step_ns;   /* step_begin to step_end; bytes: since the end of the step before */
  uint64_t last_step_stall_ns;
  uint64_t last_step_prefetch_bytes;
  uint64_t last_step_store_bytes;
  uint64_t peak_device_bytes; /* arena: highest end offset that an operand or transfer has
                                 used; callbacks: the runtime's peak */
  uint64_t stage_in_bytes;    /* flash -> pool memory */
  uint64_t stage_out_bytes;   /* pool memory -> flash */
  uint64_t last_step_stage_in_bytes;
  uint64_t last_step_stage_out_bytes;
} ho_counters;
HO_API ho_status ho_get_counters(const ho_plan* plan, ho_counters* out);

typedef struct ho_runtime_counters {
  size_t struct_bytes;
  uint64_t runs;          /* times that a plan became the one that runs */
  uint64_t steps_left;    /* steps that ended by ho_leave */
  uint64_t fetched_bytes; /* pool -> device, and */
  uint64_t stored_bytes;  /* device -> pool, outside steps; epilogues count in their plan */
  uint64_t device_bytes;  /* callbacks: all storages that have an address now */
  uint64_t peak_device_bytes;
  uint64_t doubled_storages;  /* storages with two homes, on nodes that are there, and */
  uint64_t halved_storages;   /* those that have lost one of the two with its node */
  uint64_t repaired_storages; /* times that one got a home in place of a lost one */
  uint32_t nodes;             /* that the job has reached; one that is back counts once more */
  uint32_t nodes_lost;        /* of them, those that the job has lost */
  uint64_t ddr_bytes;         /* of the pool that the runtime has for homes, in use or not */
} ho_runtime_counters;
HO_API ho_status ho_get_runtime_counters(const ho_runtime* runtime, ho_runtime_counters* out);

/* The times of an op, or of a cache op (a transfer of the schedule), in one step, counted from the
 * step's start. A cache op that moved nothing has zeros in all fields: a release of memory, or a
 * read for a next step that never comes. */
typedef struct ho_span {
  uint64_t start_ns;  /* ops: ho_before returned. Cache ops: the first piece was sent */
  uint64_t end_ns;    /* ops: ho_after. Cache ops: the last piece had arrived */
  uint64_t stall_ns;  /* ops: time waited in ho_before. Cache ops: the part of the ops' waits that
                         its end ended; if an op waits for several transfers, the last one has all
                         of the wait. The waits are always this step's. If they were for a transfer
                         that the step before began, start_ns and end_ns are those of the transfer
                         that this step began. The sum over cache ops is the step's stall, except
                         for waits that no transfer ended, or that a transfer of the prologue ended
                         in a run's first step */
  uint64_t bytes;     /* ops: bytes of the transfers that the schedule makes it wait for
                         (before_position), all of which have arrived. Cache ops: bytes moved */
  uint64_t queued_ns; /* ops: ho_before was called. Cache ops: it waited only for the link, which
                         other transfers used */
} ho_span;
/* Gives the measured timeline of the plan's last complete step. `ops` has ho_position_count
 * elements, `cache_ops` ho_cache_op_count; either may be NULL. Waits until the step's transfers
 * have ended. HO_CONFLICT: no step is complete since the plan's run began. */
HO_API ho_status ho_get_timeline(const ho_plan* plan, ho_span* ops, ho_span* cache_ops);
/* Writes the duration of each op in the plan's last complete step, from ho_before's return to
 * ho_after, as JSON to a file, which is replaced as a whole. `hyperoffload analyze --op-times`
 * plans with it if its name ends in .json. If an op runs several times in a step, its shortest time
 * counts. Call it after some warm steps, or once for each of several: the analyzer takes the
 * shortest. Outcomes as ho_get_timeline, and the file system's errors. */
HO_API ho_status ho_write_op_times(const ho_plan* plan, const char* path);

#ifdef __cplusplus
}
#endif
#endif /* HYPEROFFLOAD_HYPEROFFLOAD_H_ */
