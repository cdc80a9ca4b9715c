/* HyperOffload client library, C ABI. SPDX-License-Identifier: Apache-2.0
 *
 * A job connects to a pool, loads a schedule, and runs each step op by op:
 *
 *   ho_pool* pool;      ho_connect(&options, &pool);
 *   ho_runtime* run;    ho_load(pool, bytes, n, arena, arena_bytes, &run);
 *   ho_write(run, id, data, n);                   every persistent storage, once
 *   for each step:
 *     ho_write(run, id, data, n);                 every INPUT storage
 *     ho_step_begin(run);
 *     for each position p:
 *       ho_before(run, p);  kernel on ho_operand(run, p, id), ...;  ho_after(run, p);
 *     ho_step_end(run);
 *   ho_finish(run);     ho_read(run, id, out, n);
 *   ho_unload(run);     ho_disconnect(pool);
 *
 * Threads: one thread at a time drives one ho_runtime. ho_register, ho_unregister, ho_get, ho_put,
 * ho_wait and ho_test: one thread at a time per pool. Everything else on a pool: any thread.
 *
 * Errors: every call returns a status; ho_last_error() says more, for the calling thread's last
 * failure.
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
  HO_INVALID_ARGUMENT,
  HO_NOT_FOUND,
  HO_ALREADY_EXISTS,
  HO_OUT_OF_RANGE,
  HO_PERMISSION_DENIED,
  HO_BUSY,
  HO_EXHAUSTED,
  HO_UNAVAILABLE,
  HO_DEADLINE,
  HO_CANCELED,
  HO_CORRUPT,
  HO_UNSUPPORTED,
  HO_CONFLICT,
  HO_IO
} ho_status;

typedef struct ho_pool ho_pool;             /* sessions on all nodes, and the transfer thread */
typedef struct ho_allocation ho_allocation; /* bytes of the pool, spread over its nodes */
typedef struct ho_flash ho_flash;           /* bytes of one node's flash */
typedef struct ho_runtime ho_runtime;       /* a loaded schedule */

typedef struct ho_connect_options {
  size_t struct_bytes;     /* sizeof(ho_connect_options): lets the struct grow */
  const char* pool;        /* one or more control addresses, comma-separated: "unix:/run/x.sock",
                              "tcp:127.0.0.1:7700"; the other nodes are learnt from the first
                              that answers */
  const char* name;        /* the job, for people; may be NULL */
  const char* transport;   /* "auto" (also NULL), or the drivers that may be used: "local",
                              "ofi", "ucx", "local,ofi". One alone is forced; what is left out is
                              forbidden */
  uint32_t op_deadline_ms; /* for each piece of a transfer (a few MiB) from when it is sent, over
                              "ofi" and "ucx"; 0: 1500. Below 800 a link that is cut costs the
                              node, also where it has another. "local" copies by itself and waits
                              for nobody: it takes no notice. Time in which the job was stopped
                              does not count */
  const char* ucx_module;  /* absolute path of the driver "ucx", which is opened only where it is
                              used; NULL or "": hyperoffload/hyperoffload-ucx.so beside
                              this library */
  /* Of "ofi"; each may be NULL or "" for what fits the daemon. A daemon that speaks another
     provider, or cannot be reached by the domain or interface, is reached by another driver or
     left out; of a node's several rails those that cannot be reached so are left out. */
  const char* ofi_provider;  /* libfabric's: "net" and "tcp" (TCP; one from libfabric 1.18 on),
                                "verbs", "efa", "cxi" */
  const char* ofi_domain;    /* libfabric's name of a device: "mlx5_0", "eth0" */
  const char* ofi_interface; /* network interface to go out by: "eth0" */
  uint32_t ofi_connections;  /* to each rail of a node for transfers above 64 KiB, over which they
                                are spread (small ones have another); 0: 1; at most 16 */
  /* Of "ucx". */
  const char* ucx_devices;      /* "mlx5_0:1" or several, comma-separated, 8 at most, in the order
                                   in which nodes name theirs: transfers are spread over all, and
                                   what one that fails took with it goes over the others. NULL or
                                   "": all that are up */
  const char* ucx_transports;   /* "rc" (also NULL and ""), "dc" or "rc,dc" */
  uint32_t ucx_allow_emulation; /* 1: any transport of UCX's, as "tcp", where the daemon allows it
                                   too. For experiments only: no promise about faults holds */
  uint32_t local_threads; /* of "local": that share copies of 512 KiB and more, the transfer thread
                             among them; 1 .. 4. 0: one, and one more for every eight cores in the
                             affinity mask. Say 1 under a processor quota */
  const char* local_numa; /* of "local": the NUMA node that the daemon takes memory from where it
                             has some left there. "auto" (also NULL and ""): of ho_load, the one
                             that most of the arena lies on; else, and of ho_allocate, the one that
                             the calling thread runs on. A node's number, as "1"; or "off" */
  uint64_t link_bytes_per_s; /* limits the job's gets and its puts to this rate each, over all nodes
                                together; what moves between flash and pool memory does not count.
                                0: no limit */
} ho_connect_options;

HO_API const char* ho_version(void);
HO_API const char* ho_status_name(ho_status status);
/* Text of this thread's last failed call; valid until its next failed call; never NULL. */
HO_API const char* ho_last_error(void);

/* Opens a session on every node. Renews its leases on a thread of its own. A node whose best driver
 * does not reach it is reached by the next one; a node that none of those allowed reaches is left
 * out: both with a warning in the log that says why. It fails where no node is left, and where the
 * only driver allowed cannot be used. */
HO_API ho_status ho_connect(const ho_connect_options* options, ho_pool** out);
/* Frees everything the job holds in the pool. All runtimes and allocations must be gone. NULL is
 * allowed. */
HO_API void ho_disconnect(ho_pool* pool);
/* Name of the driver that carries the data: "local", "ucx" or "ofi"; "mixed" where nodes are
 * reached by several. Lives as the pool does. */
HO_API const char* ho_pool_transport(const ho_pool* pool);

/* --- plain one-sided access (what the schedule does by itself) --- */

/* Allocates pool memory, zeroed. HO_EXHAUSTED: "needs X, pool has Y on nodes ...". */
HO_API ho_status ho_allocate(ho_pool* pool, uint64_t bytes, ho_allocation** out);
HO_API void ho_free(ho_pool* pool, ho_allocation* allocation);
/* Registers host memory that get/put may use. It must outlive ho_unregister(). */
HO_API ho_status ho_register(ho_pool* pool, void* base, size_t bytes);
/* Ends that. Waits for transfers that still use the memory, waited for by ho_wait or not, as
 * ho_free does for the allocation's; bounded by their deadlines. */
HO_API ho_status ho_unregister(ho_pool* pool, void* base);
/* Starts a transfer; `ticket` is for ho_wait/ho_test. The bytes belong to the library until it is
 * done. */
HO_API ho_status ho_get(ho_pool* pool, ho_allocation* from, uint64_t offset, void* into,
                        size_t bytes, uint64_t* ticket);
HO_API ho_status ho_put(ho_pool* pool, ho_allocation* to, uint64_t offset, const void* from,
                        size_t bytes, uint64_t* ticket);
/* Waits for one transfer and gives its outcome. Each ticket is waited for once. */
HO_API ho_status ho_wait(ho_pool* pool, uint64_t ticket);
/* done: 1 if ho_wait would not block. */
HO_API ho_status ho_test(ho_pool* pool, uint64_t ticket, int* done);

/* --- plain access to flash --- */

/* Flash is reached through memory of the node that has it: stage in, then get; put, then stage out.
 * One allocation lies on one node.
 *
 * The policy is one of each allocation, not of the job: a job has checkpoints that must outlive it
 * beside activations that need not, and pays for safety, a sync and a log record, where it asks for
 * it. */
typedef enum ho_flash_policy {
  HO_FLASH_SCRATCH = 0, /* gone when the job disconnects; a stage_out is done when the device took
                           the bytes */
  HO_FLASH_DURABLE = 1  /* stays until ho_flash_free; a stage_out is done when the bytes outlive a
                           crash and a power cut */
} ho_flash_policy;

/* Takes flash of the node that has most. HO_UNSUPPORTED: none has any. Bytes that were never staged
 * out cannot be staged in: HO_NOT_FOUND. */
HO_API ho_status ho_flash_allocate(ho_pool* pool, uint64_t bytes, ho_flash_policy policy,
                                   ho_flash** out);
/* Gives it back, durable or not. HO_OK: the handle is gone, too; of NULL nothing is done. Otherwise
 * the handle stays, for another try or ho_flash_close: HO_DEADLINE (its node does not answer; it
 * may free it yet), HO_UNAVAILABLE (its node is lost: durable flash stays), HO_NOT_FOUND (it is
 * freed already, as by a try that ended with HO_DEADLINE). */
HO_API ho_status ho_flash_free(ho_pool* pool, ho_flash* flash);
/* Ends the handle alone: what is durable stays. */
HO_API void ho_flash_close(ho_flash* flash);
/* The name by which a later job, also after a restart of the daemon, opens durable flash. A secret.
 * room: HO_FLASH_NAME_BYTES are enough, the closing zero included. */
#define HO_FLASH_NAME_BYTES 48
HO_API ho_status ho_flash_name(const ho_pool* pool, const ho_flash* flash, char* out, size_t room);
HO_API ho_status ho_flash_open(ho_pool* pool, const char* name, ho_flash** out);
HO_API uint64_t ho_flash_bytes(const ho_flash* flash);
/* Pool memory of the node that has this flash: what it can be staged from and to. */
HO_API ho_status ho_allocate_beside(ho_pool* pool, const ho_flash* flash, uint64_t bytes,
                                    ho_allocation** out);
/* Start a move; the ticket is for ho_wait/ho_test. The range of pool memory is the library's until
 * it is done. Long moves are better asked for in parts: each can be used when it is done. After
 * HO_DEADLINE the bytes may still move: do not use the memory again.
 * HO_CORRUPT, HO_IO: the text names node, path, extent and block. */
HO_API ho_status ho_stage_in(ho_pool* pool, const ho_flash* from, uint64_t flash_offset,
                             ho_allocation* into, uint64_t offset, size_t bytes, uint64_t* ticket);
HO_API ho_status ho_stage_out(ho_pool* pool, ho_flash* to, uint64_t flash_offset,
                              const ho_allocation* from, uint64_t offset, size_t bytes,
                              uint64_t* ticket);

/* --- schedules --- */

/* Proves the schedule legal, allocates its home slots, registers the arena.
 * schedule: the bytes of a .hos file, not kept. arena: 64-byte aligned device memory, at least the
 * schedule's arena_bytes; belongs to the runtime until ho_unload(). */
HO_API ho_status ho_load(ho_pool* pool, const void* schedule, size_t schedule_bytes, void* arena,
                         size_t arena_bytes, ho_runtime** out);
HO_API void ho_unload(ho_runtime* runtime);

/* Fills a storage's home slot: persistent ones before the first step, INPUT before each step. */
HO_API ho_status ho_write(ho_runtime* runtime, uint32_t storage_id, const void* data, size_t bytes);
/* Reads a persistent storage's latest value from home, after ho_finish(). */
HO_API ho_status ho_read(ho_runtime* runtime, uint32_t storage_id, void* into, size_t bytes);

HO_API ho_status ho_step_begin(ho_runtime* runtime);
/* Waits until every operand of the position is in place. Positions go 0, 1, 2, ... in a step. */
HO_API ho_status ho_before(ho_runtime* runtime, uint32_t position);
/* The operand's address at this position, or NULL where the op has no such operand. */
HO_API void* ho_operand(const ho_runtime* runtime, uint32_t position, uint32_t storage_id);
HO_API ho_status ho_after(ho_runtime* runtime, uint32_t position);
HO_API ho_status ho_step_end(ho_runtime* runtime);
/* Runs the epilogue: afterwards every persistent storage's latest value is at home. */
HO_API ho_status ho_finish(ho_runtime* runtime);

HO_API uint32_t ho_position_count(const ho_runtime* runtime);
/* The graph's op id at a position. */
HO_API uint32_t ho_position_op(const ho_runtime* runtime, uint32_t position);
HO_API uint32_t ho_cache_op_count(const ho_runtime* runtime);

typedef struct ho_counters {
  size_t struct_bytes; /* set by the caller: sizeof(ho_counters) */
  uint64_t steps;
  uint64_t stall_ns;       /* all steps */
  uint64_t prefetch_bytes; /* pool -> device */
  uint64_t store_bytes;    /* device -> pool */
  uint64_t last_step_ns;   /* step_begin to step_end */
  uint64_t last_step_stall_ns;
  uint64_t last_step_prefetch_bytes;
  uint64_t last_step_store_bytes;
  uint64_t peak_device_bytes; /* highest end offset any operand or transfer has used */
  uint64_t stage_in_bytes;    /* flash -> pool memory */
  uint64_t stage_out_bytes;   /* pool memory -> flash */
  uint64_t last_step_stage_in_bytes;
  uint64_t last_step_stage_out_bytes;
} ho_counters;
/* HO_INVALID_ARGUMENT: struct_bytes has no room for any counter. */
HO_API ho_status ho_get_counters(const ho_runtime* runtime, ho_counters* out);

/* What an op, or a cache op (a transfer of the schedule), did in one step. Times are from the
 * step's start. A cache op that moved nothing has zeros in all fields: a release of memory, a read
 * for a next step that never comes. */
typedef struct ho_span {
  uint64_t start_ns;  /* ops: ho_before let it go. Cache ops: its first piece was sent */
  uint64_t end_ns;    /* ops: ho_after. Cache ops: its last piece had arrived */
  uint64_t stall_ns;  /* ops: waited in ho_before. Cache ops: that part of the ops' waits which its
                         end ended; of several transfers that an op waits for, the last one has all
                         of it. The waits are always this step's: those for a transfer that the
                         step before began were ended by that one, while start_ns and end_ns are of
                         the one that this step began. Together they are the step's stall, but for
                         waits that no transfer ended, or that one of the prologue did in the first
                         step */
  uint64_t bytes;     /* ops: of the transfers that the schedule has it wait for (before_position),
                         all of which have arrived. Cache ops: moved */
  uint64_t queued_ns; /* ops: ho_before was called. Cache ops: nothing held it back any more but the
                         link, which others had */
} ho_span;
/* Measured timeline of the last complete step. Arrays of ho_position_count / ho_cache_op_count
 * elements. */
HO_API ho_status ho_get_timeline(const ho_runtime* runtime, ho_span* ops, ho_span* cache_ops);
/* Writes what each op took in the last complete step, from ho_before's return to ho_after, as JSON
 * to a file (.json) that is replaced as a whole: what `hyperoffload analyze --op-times` plans with.
 * Of an op that runs several times in a step the shortest counts. After some warm steps, or once
 * for each of several: the analyzer takes the shortest. Errors: HO_CONFLICT before the first
 * step's end, and the file system's. */
HO_API ho_status ho_write_op_times(const ho_runtime* runtime, const char* path);

#ifdef __cplusplus
}
#endif
#endif /* HYPEROFFLOAD_HYPEROFFLOAD_H_ */
