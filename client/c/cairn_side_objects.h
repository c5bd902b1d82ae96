/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_SIDE_OBJECTS_H
#define CAIRN_SIDE_OBJECTS_H
// The part of the C ABI that is about side objects, what images of some recipes are coded with.
// Part of cairn.h, whose rules hold here too; include that.

#ifndef CAIRN_H
#error "include cairn.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { CAIRN_SIDE_OBJECT_PROFILE = 1, CAIRN_SIDE_OBJECT_BANK = 2 }; /* docs/internals/formats */

/* Makes `data` what later puts into the group are coded with. `id`, its SHA-256, may be NULL. */
CAIRN_API int cairn_side_object_put(cairn_space* space, uint32_t group, int32_t kind,
                                    const void* data, size_t data_bytes, uint32_t timeout_ms,
                                    uint8_t id[32]);
/* Sets *bytes; writes them where `capacity` suffices, else CAIRN_INVALID_ARGUMENT. `target` NULL:
 * only sets *bytes. CAIRN_NOT_FOUND: the space has it not (any more). */
CAIRN_API int cairn_side_object_get(cairn_space* space, const uint8_t id[32], uint32_t timeout_ms,
                                    void* target, size_t capacity, size_t* bytes);
/* Of that kind, what puts into the group are coded with now. CAIRN_NOT_FOUND: nothing. */
CAIRN_API int cairn_side_object_current(cairn_space* space, uint32_t group, int32_t kind,
                                        uint32_t timeout_ms, uint8_t id[32]);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_SIDE_OBJECTS_H */
