/* HyperOffload client library, C ABI of published objects. SPDX-License-Identifier: Apache-2.0
 *
 * A program publishes named, immutable versions of a set of tensors in the pool; other programs
 * read them, each rank under a layout of its own: weights of a trainer for its samplers, a frozen
 * model for many readers, a checkpoint saved on 4 x 2 ranks and loaded on 2 x 4.
 *
 *   publisher, each rank:                        reader, each rank:
 *   ho_publisher_open(pool, &options,            ho_subscriber_open(pool, &options,
 *                     tensors, n, &publisher);                      tensors, n, &subscriber);
 *   each time:                                   each time:
 *     ho_publish(publisher, version);              ho_acquire(subscriber, least, most, ms, &found);
 *                                                  ho_object_read(subscriber);
 *                                                  ho_object_release(subscriber);
 *   ho_publisher_close(publisher);               ho_subscriber_close(subscriber);
 *
 * Guarantees. Readers find a version only when all ranks have published it: if a rank is killed in
 * between, readers never find that version. A read that is HO_OK has the bytes that were published
 * under that name and version: each rank compares checksums, which depend on name, version and
 * place. Otherwise the read fails; it never succeeds with other bytes.
 *
 * Lifetime. A version is in the DDR of the node that its publisher chose, or of another one once
 * that is drained (not with `exclusive`); ho_publish waits while it moves. It lives until
 * ho_publisher_close, ho_disconnect or the end of the publisher's job, or until the publisher needs
 * its memory for a new version and no reader has it open. When a daemon passes its memory to the
 * next one (`hyperoffload upgrade`), readers find the versions of a publisher again as soon as its
 * session is resumed. A reader that has a version open there loses it, and calls ho_acquire again.
 *
 * Layouts are texts, as for `hyperoffload layout`: a mesh "4x2:dp,tp" (ranks 0 .. 7, or others
 * after "@"), and for each dimension of a tensor the axes that divide it, "dp,tp;-".
 *
 * Threads. One thread at a time for each handle; different handles of a pool on any threads. Any
 * thread, and a signal handler, may stop a call on an open handle.
 */
#ifndef HYPEROFFLOAD_OBJECTS_H_
#define HYPEROFFLOAD_OBJECTS_H_

#include <hyperoffload/hyperoffload.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ho_publisher ho_publisher;   /* one rank's part of an object that it publishes */
typedef struct ho_subscriber ho_subscriber; /* one rank that reads an object */

/* How a publisher's tiles are cut into chunks, each of which is fetched whole. */
typedef enum ho_chunking {
  /* As they lie in memory: fastest for readers that divide tensors as the publisher does, or only
     along the first dimension. */
  HO_CHUNKS_ROWS = 0,
  /* Along all dimensions, in chunks of 64 KiB and more that have 256 bytes of a row and more: a
     reader that needs parts of rows of a tile of some MiB fetches little more than these. Both
     sides copy once more. */
  HO_CHUNKS_GRID = 1
} ho_chunking;

/* A field that is zero has its default. Texts are UTF-8 of at most 255 bytes, unless stated
   otherwise. */
typedef struct ho_object_options {
  size_t struct_bytes; /* sizeof(ho_object_options): lets the struct grow */
  const char* name;
  /* The programs that see the object: those with the same user (over a Unix socket) or certificate
     (over TLS); another user's object of this name is a different one. With a secret: those that
     know it. Use one for jobs that reach a node in different ways, as those on several nodes. */
  const char* secret; /* NULL or "": none; else 16 to 256 bytes, any */
  const char* mesh;   /* mesh of this program's ranks, up to 65535 bytes; NULL or "": one rank, 0 */
  uint32_t rank;      /* the caller's rank in the mesh */
  /* Publishers: a number that all ranks of this run of the program share, and no other run has, so
     that parts of two runs never form one version. Rank 0 may draw it at random and send it to the
     others. 0: drawn by the library, only for a mesh of one rank. */
  uint64_t run;
  uint32_t versions; /* publishers: versions kept, each in its own memory; 0: 2; at most 1024 */
  /* ho_object_read, ho_object_read_tensor and ho_publish are held to this rate, so that they leave
     the links to steps of other jobs; 0: no limit. `hyperoffload analyze-programs` finds that of
     readers. */
  uint64_t link_bytes_per_s;
  uint32_t chunks; /* publishers: a ho_chunking, the same in all ranks */
  /* Readers: axes of the mesh along which ranks have the same tiles, and share the work of reading
     them: each reads a part from the publisher, publishes it, and reads the rest from the others.
     "gpu" (one step), "node;gpu" (first along node, then along gpu) or "node,gpu" (both at once).
     So a publisher sends each byte once. All ranks set the same `run`, want the same tensors in the
     same order, read the same versions in the same order, and close when all have read. A rank
     keeps its part of `versions` versions in the pool: for each step segments of its own, and so
     for each of the up to 8 groups that tensors go in, which have at least a segment's bytes. Where
     the others' parts do not come in 2 s a step, it reads all from the publisher. The name has at
     most 223 bytes then. NULL or "": none. */
  const char* relay;
  /* Publishers: 1: ho_publish first reserves the version for this run in the whole pool, so that of
     several runs one publishes it, whatever nodes they use. The nodes of the pool must be listed in
     etcd. Lasts as long as the version does and etcd answers the node: one that is cut off from
     etcd for 5 s keeps its versions, and another run may publish them, too. 0: versions of two runs
     exclude each other on one node alone. */
  uint32_t exclusive;
  /* Publishers: ho_publish calls fill(fill_context, i) on the calling thread just before it copies
     tile i, by the tensors' order at ho_publisher_open. fill writes the tile to its memory. No
     transfer uses any tile's memory then, so tiles may share it: a rank publishes more than it has
     memory for. Not called for tiles without bytes, and those that another rank stores; again, from
     the first one, where the node's daemon was restarted. fill must neither throw nor use this
     publisher. Where it does not return HO_OK, ho_publish ends with its status, and this rank's
     part is not visible. NULL: the tiles are in their memory. */
  ho_status (*fill)(void* fill_context, size_t tensor);
  void* fill_context;
  /* Publishers: 1: ranks' parts are on the nodes of the pool in turns, so that nodes have about as
     many bytes, and send as many where many read. The same in all ranks. 0: on this machine's node,
     if there is one with room. */
  uint32_t in_turns;
} ho_object_options;

/* A tensor, as this rank has it. The library copies all of it except `data`. */
typedef struct ho_tensor {
  const char* name;   /* unique in its object; up to 65535 bytes */
  const char* layout; /* layout over the mesh; NULL or "": each rank has all of it */
  /* "bfloat16"; a reader's must be the publisher's; NULL or "": any. "bf16" is the same, as are
     "f32", "float" and "float32", and so on; torch's names are the proper ones. All ranks that
     publish an object write the same word. */
  const char* dtype;
  const uint64_t* shape;  /* shape of the whole tensor, sizes from 0; a reader may leave it NULL */
  uint32_t dimensions;    /* 1 to 8 */
  uint32_t element_bytes; /* 1 to 1024; a reader may leave it 0 */
  void* data;             /* this rank's tile, contiguous and row-major; NULL if it has none */
  uint64_t bytes;         /* size of the tile */
} ho_tensor;

/* Writes the shape of a rank's tile, in elements, to `tile`, which has room for `dimensions` sizes.
 * The other arguments are those of ho_object_options and ho_tensor.
 *
 * HO_OK                done.
 * HO_INVALID_ARGUMENT  a null argument, a mesh or layout that cannot be read or does not fit the
 *                      shape, a rank that is not in the mesh. */
HO_API ho_status ho_tile_shape(const char* mesh, uint32_t rank, const char* layout,
                               const uint64_t* shape, uint32_t dimensions, uint64_t* tile);
/* Takes pool memory for the versions, on this machine's node if there is one, else on another, by
 * rank, or as `in_turns` says, and registers the tensors' memory, which must exist until
 * ho_publisher_close.
 *
 * HO_OK                *out is the caller's until ho_publisher_close.
 * HO_INVALID_ARGUMENT  a null argument, a mesh or layout that cannot be read, a partial value, a
 *                      tile of another size than the layout says, a text that is not UTF-8.
 * HO_EXHAUSTED         no node has room for all versions of this rank's part. */
HO_API ho_status ho_publisher_open(ho_pool* pool, const ho_object_options* options,
                                   const ho_tensor* tensors, size_t count, ho_publisher** out);
/* Copies this rank's tiles into the pool and makes them visible as a version. Waits for the bytes.
 * Do not change the tensors meanwhile. If several ranks have the same tile, one of them stores it.
 *
 * HO_OK                this rank's part is visible.
 * HO_INVALID_ARGUMENT  the version is not above the last one; versions begin at 1.
 * HO_BUSY              readers have all versions open that are kept: nothing was done, try again.
 * HO_ALREADY_EXISTS    another run has published or reserved this version, and its session has not
 *                      ended.
 * HO_UNSUPPORTED       `exclusive` is set, and the nodes are not listed in etcd.
 * HO_CANCELED          ho_publisher_stop ended it, and this rank's part is not visible: the same
 *                      version may be published again. The oldest one may have made room already.
 * HO_UNAVAILABLE, HO_DEADLINE   the node is lost or did not answer: go on with the next version.
 * the status of `fill`          where it is not HO_OK: this rank's part is not visible, and the
 *                               same version may be published again, as after HO_CANCELED. */
HO_API ho_status ho_publish(ho_publisher* publisher, uint64_t version);
/* Makes a ho_publish that is under way end soon, with HO_CANCELED unless its bytes are all in the
 * pool. What it has begun to move comes to its end first: 16 MiB at most. A ho_publish that begins
 * later is not stopped. NULL is allowed. */
HO_API void ho_publisher_stop(ho_publisher* publisher);
/* Ends all versions of the publisher, also those that readers have open: their reads fail. NULL is
 * allowed. */
HO_API void ho_publisher_close(ho_publisher* publisher);

/* Opens a reader; reads nothing yet. ho_object_read writes to the tensors' memory, which must exist
 * until ho_subscriber_close. They may be a part of the object's tensors.
 *
 * HO_OK                *out is the caller's until ho_subscriber_close.
 * HO_INVALID_ARGUMENT  a null argument, a mesh that cannot be read, or a text that is not UTF-8.
 *                      With a relay: no run, more than 1024 versions, a name of more than 223
 *                      bytes, an axis that the mesh lacks, or two tensors of one name. */
HO_API ho_status ho_subscriber_open(ho_pool* pool, const ho_object_options* options,
                                    const ho_tensor* tensors, size_t count, ho_subscriber** out);
/* Opens the newest complete version in [least, most] and closes the one that was open. 0 and
 * UINT64_MAX: any version; twice the same number: exactly that one. Asks all nodes of the pool
 * repeatedly until there is one or the time is over: at least once, and a node that does not answer
 * is waited for 2 s each time, at the release of a version too, whatever timeout_ms is. An open
 * version stays until ho_object_release.
 *
 * HO_OK                *version is open.
 * HO_NOT_FOUND         no such version, or the object lacks a tensor of one of the names.
 * HO_CONFLICT          a tensor of the object has another shape or type.
 * HO_INVALID_ARGUMENT  a layout does not fit, or the memory has another size than the tile.
 * HO_CANCELED          ho_subscriber_stop ended it: no version is open.
 * HO_UNAVAILABLE       no node is left; or there is no such version on the nodes that could be
 * asked, and ho_last_error names the others. */
HO_API ho_status ho_acquire(ho_subscriber* subscriber, uint64_t least, uint64_t most,
                            uint32_t timeout_ms, uint64_t* version);
/* Fetches this rank's tiles of the open version with one-sided gets. The first ho_acquire of an
 * object with these tensors and layouts makes the plan for them. Waits for the bytes. After a
 * failure the contents of the memory are not defined. Tensors may share memory if they have equal
 * values there, as tied weights do. Otherwise the last one written stays, even after its checksum
 * was compared.
 *
 * HO_OK          all tiles are there, and their checksums are those of the publisher.
 * HO_CONFLICT    no version is open.
 * HO_CANCELED    ho_subscriber_stop ended it: the version stays open, and may be read again. No
 *                byte of the memory is written from now on. With relays, the other ranks wait for
 *                this one's part as for that of a rank that is missing.
 * HO_CORRUPT     the bytes are not those that were published.
 * HO_NOT_FOUND   the publisher has ended, or its daemon was restarted.
 * HO_UNAVAILABLE, HO_DEADLINE   a node is lost. */
HO_API ho_status ho_object_read(ho_subscriber* subscriber);
/* The same for one tensor, by its index at ho_subscriber_open: the memory of the others stays as it
 * is, so that tensors may share theirs and be read one after another. Without relays.
 *
 * HO_OUT_OF_RANGE  there is no such tensor.
 * HO_UNSUPPORTED   the reader has relays. */
HO_API ho_status ho_object_read_tensor(ho_subscriber* subscriber, size_t tensor);
/* Makes a ho_acquire, ho_object_read or ho_object_read_tensor that is under way end soon, with
 * HO_CANCELED unless it is about to end. What it has begun to move comes to its end first: 16 MiB
 * at most, with relays three times as much. A call that begins later is not stopped. NULL is
 * allowed. */
HO_API void ho_subscriber_stop(ho_subscriber* subscriber);
/* Closes the open version, if there is one. */
HO_API void ho_object_release(ho_subscriber* subscriber);
/* Describes the open version, or the last one that was open, as JSON: {"mesh": ..., "tensors":
 * [{"name", "layout", "shape", "element_bytes", "dtype"}], "needed_bytes": the size of the caller's
 * tiles, "fetched_bytes": the same with the unneeded parts of chunks}; with relays also "relays":
 * {"fetched_bytes": what a read takes from the publisher, "relayed_reads", "direct_reads": how many
 * reads took the rest from other ranks, and how many did not}. The text lives until the next call
 * on the handle. NULL before the first version. */
HO_API const char* ho_object_text(ho_subscriber* subscriber);
/* NULL is allowed. */
HO_API void ho_subscriber_close(ho_subscriber* subscriber);

#ifdef __cplusplus
}
#endif

#endif
