/* HyperOffload client library, C ABI of KV blocks. SPDX-License-Identifier: Apache-2.0
 *
 * Serving jobs store blocks of a KV cache in the pool, by key, and find those that other jobs of
 * the same tenant stored. Blocks lie in DDR and on flash of nodes whose configuration has `blocks`.
 * A node evicts blocks when it has no room. So a stored block may be gone at any time: this is a
 * cache, not a store of record.
 *
 *   ho_blocks_open(pool, &options, &blocks);
 *   ho_register(pool, buffer, bytes);                  where blocks come from and go to
 *   ho_blocks_submit(blocks, HO_BLOCKS_PUT, items, n, &ticket);
 *   poll(ho_blocks_event_fd(blocks)), then
 *   while ((k = ho_blocks_drain(blocks, done, 64)) > 0) ...   one outcome for each item
 *   ho_blocks_match(blocks, chain, n, &found, &pin);   the longest prefix that is stored
 *   ho_blocks_unpin(blocks, pin);
 *   ho_blocks_close(blocks);
 *
 * Threads. All functions except ho_blocks_event_fd: one thread at a time per pool, as ho_get. The
 * library starts no thread for blocks, and never calls the job.
 *
 * Restarts. An upgrade of a node's daemon keeps its blocks, a crash does not. Where systemd starts
 * the daemon and keeps its memory, opened blocks go on in both cases: until the next daemon is
 * there, gets of that node's keys are HO_NOT_FOUND, puts and removals fail. Without that a job has
 * lost the node when its daemon ends. Its keys go to the other nodes that have a store; where none
 * is left, gets are HO_NOT_FOUND, puts and removals HO_UNAVAILABLE. To use the node again, close
 * the blocks, and open them on a new connection (ho_connect).
 *
 * A node that does not answer. The first request waits for its deadline. From then on the node's
 * keys are HO_NOT_FOUND at once, also for ho_blocks_match, and puts HO_DEADLINE; every 5 s one
 * request tries, and the node is used again when it answers. A removal always asks the node;
 * HO_DEADLINE if it does not answer in time.
 *
 * Outcomes. Each submitted item has exactly one outcome, whatever fails. If a get is HO_OK, its
 * memory has the bytes that were put for its key: ho_blocks_drain compares a checksum of key and
 * bytes, on the calling thread. The only other outcome of a get is HO_NOT_FOUND: the block was not
 * stored, its node is lost or late, or its bytes are damaged.
 */
#ifndef HYPEROFFLOAD_BLOCKS_H_
#define HYPEROFFLOAD_BLOCKS_H_

#include <hyperoffload/hyperoffload.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ho_blocks ho_blocks; /* a tenant's blocks of one model, in all nodes of a pool */

/* For ho_blocks_open. A field that is zero has its default. Texts have at most 255 bytes; tenant
   and model are UTF-8. */
typedef struct ho_blocks_options {
  size_t struct_bytes; /* sizeof(ho_blocks_options): lets the struct grow */
  /* The jobs of one tenant share blocks. A tenant is this name together with the job's user (over
     a Unix socket) or certificate (over TLS). With a secret it is the name together with the
     secret: use one for jobs that reach a node in different ways, such as jobs on several nodes. */
  const char* tenant; /* NULL or "": "default" */
  const char* secret; /* NULL or "": none; else 16 to 256 bytes */
  /* Blocks with the same key and different values here are different. NULL or "": not used. */
  const char* model;  /* `hyperoffload blocks` also counts by it */
  const char* dtype;  /* "bf16" */
  const char* layout; /* the framework's name of it: it cannot use blocks of another layout */
  uint32_t rank;      /* number of the part of the model that this job has */
  const char* salt;   /* anything else */
  /* The sizes of blocks, at most 16; each is 4096 bytes up to a segment of the pool. NULL: any
     size, but a node accepts only 16 different ones for one tenant. */
  const uint64_t* block_bytes;
  size_t block_bytes_count;
  uint32_t deadline_ms; /* for a request without its transfers, whose deadline is that of
                           ho_connect; 0: 5000 */
} ho_blocks_options;

/* Opens the tenant's blocks on all nodes of the pool that have a block store.
 *
 * HO_OK                *out is the caller's until ho_blocks_close.
 * HO_INVALID_ARGUMENT  a null argument; struct_bytes not set; a text or a size that is out of its
 *                      limits.
 * HO_UNSUPPORTED       no node of the pool has a block store.
 * HO_EXHAUSTED         the nodes have 256 tenants, or the job has opened 16 pairs of tenant and
 *                      model. A close gives none of them back; the same pair counts once.
 * HO_UNAVAILABLE, HO_DEADLINE   no node that has one answers. If some answer, the others are left
 *                      out with a warning. */
HO_API ho_status ho_blocks_open(ho_pool* pool, const ho_blocks_options* options, ho_blocks** out);
/* Ends all requests, waits for transfers until their deadlines, and gives pins back. Outcomes that
 * were not drained are lost; stored blocks stay. NULL is allowed. */
HO_API ho_status ho_blocks_close(ho_blocks* blocks);

typedef enum ho_blocks_op {
  HO_BLOCKS_GET = 0,
  HO_BLOCKS_PUT = 1,
  HO_BLOCKS_EXISTS = 2,
  HO_BLOCKS_REMOVE = 3
} ho_blocks_op;

/* One block of a request. */
typedef struct ho_block {
  const void* key;  /* copied before ho_blocks_submit returns */
  size_t key_bytes; /* 16 to 64 */
  /* For get and put: registered memory. It belongs to the library from ho_blocks_submit until the
     item's outcome was drained. A put only reads it. */
  void* data;
  uint64_t bytes; /* one of the sizes */
  uint32_t cost;  /* put: cost of making the block again, relative to others; blocks with a
                     higher cost are evicted later; 0: 1 */
} ho_block;

/* Starts a request. Does not wait, but computes the checksums of a put (about 15 GB/s).
 *
 * HO_OK    each of the `count` items will have one outcome with this ticket.
 * HO_INVALID_ARGUMENT  a null argument; no items, or more than 65536; a key or size out of its
 *                      limits; memory that is not registered as a whole.
 * HO_BUSY  with these more than 65536 items would be submitted and not drained: drain, and submit
 *          again. */
HO_API ho_status ho_blocks_submit(ho_blocks* blocks, ho_blocks_op op, const ho_block* items,
                                  size_t count, uint64_t* ticket);

typedef struct ho_block_done {
  uint64_t ticket;
  uint32_t index; /* the item's index in its request */
  /* HO_OK         get: the bytes are there. put: the block is stored, now or before; one of another
                   size that had its key is gone. exists: it was stored. remove: it was stored and
                   is removed.
     HO_NOT_FOUND  get, exists: no such block, or it cannot be read. remove: no such block.
     HO_EXHAUSTED  put: no room, since all blocks are pinned or being written, or the node does not
                   take this size: it is above its segments, or the tenant has 16 others.
     HO_UNAVAILABLE, HO_DEADLINE and others   put, remove: not done, or not known in time. */
  ho_status status;
} ho_block_done;

/* A descriptor that is readable when ho_blocks_drain has work: outcomes, or a deadline. It lives as
 * long as `blocks`. It may be read, 8 bytes at a time as an eventfd: then it is readable again only
 * after ho_blocks_drain, so call that after each read, until it returns 0. -1 for NULL. */
HO_API int ho_blocks_event_fd(const ho_blocks* blocks);
/* Moves up to `count` outcomes into `done`, and compares the checksums of gets among them. Does not
 * wait. Returns their number; 0: none now. Call it until it returns 0. */
HO_API size_t ho_blocks_drain(ho_blocks* blocks, ho_block_done* done, size_t count);

/* Finds the longest prefix of a chain of keys that is stored, over all nodes, and pins its blocks:
 * they are not evicted until ho_blocks_unpin, ho_blocks_close, or 30 s have passed. Uses only the
 * keys of the items. Waits for the nodes, 2 s at most.
 *
 * HO_OK    *found: leading items that are stored; it looks at 65536 at most. *pin: for
 *          ho_blocks_unpin; 0: nothing is pinned. A node keeps 256 pins of a job, of which a match
 *          takes one for each 8192 keys there. Of further ones it only tells what is stored.
 * HO_INVALID_ARGUMENT  a null argument, or a key out of its limits. */
HO_API ho_status ho_blocks_match(ho_blocks* blocks, const ho_block* chain, size_t count,
                                 size_t* found, uint64_t* pin);
/* Ends a pin. HO_NOT_FOUND: no such pin. */
HO_API ho_status ho_blocks_unpin(ho_blocks* blocks, uint64_t pin);

#ifdef __cplusplus
}
#endif

#endif
