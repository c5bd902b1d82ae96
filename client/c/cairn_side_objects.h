/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAIRN_SIDE_OBJECTS_H
#define CAIRN_SIDE_OBJECTS_H
// Side objects: profiles and banks, which the encoder and the decoder of some recipes read. This
// file is a part of cairn.h, and its rules apply. Include cairn.h.

#ifndef CAIRN_H
#error "include cairn.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { CAIRN_SIDE_OBJECT_PROFILE = 1, CAIRN_SIDE_OBJECT_BANK = 2 }; /* docs/internals/formats */

/* Installs `data` as the group's current side object: later puts into the group are encoded with
 * it. Sets `id`, which may be NULL, to the SHA-256 of `data`. */
CAIRN_API int cairn_side_object_put(cairn_space* space, uint32_t group, int32_t kind,
                                    const void* data, size_t data_bytes, uint32_t timeout_ms,
                                    uint8_t id[32]);
/* Sets *bytes to the size, and copies the bytes to `target`. If `target` is NULL, only sets *bytes.
 * CAIRN_INVALID_ARGUMENT: `capacity` is too small. CAIRN_NOT_FOUND: the space does not have the
 * side object, or no longer has it. */
CAIRN_API int cairn_side_object_get(cairn_space* space, const uint8_t id[32], uint32_t timeout_ms,
                                    void* target, size_t capacity, size_t* bytes);
/* Gets the id of the group's current side object of a kind. CAIRN_NOT_FOUND: there is none. */
CAIRN_API int cairn_side_object_current(cairn_space* space, uint32_t group, int32_t kind,
                                        uint32_t timeout_ms, uint8_t id[32]);

#ifdef __cplusplus
}
#endif
#endif /* CAIRN_SIDE_OBJECTS_H */
