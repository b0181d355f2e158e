/* hither.h: the files of a hither mount for programs, without the kernel in between.
 *
 * A program connects to a mount by its mount point. It sees the same data as a program of the
 * mount, as promptly and with the same rights. The library adds many files in few round trips:
 * hither_readv, hither_read_files, hither_stat_many, hither_walk.
 *
 *     cc program.c $(pkg-config --cflags --libs hither)
 *
 * Paths are relative to the mount's root ("" is the root), or absolute below the mount point. No
 * umask is applied. There are no locks.
 *
 * A call that fails returns -1 or NULL. It sets errno as the system call of the same name would.
 * hither_error() then returns a readable line. The library sends no signal. These errors are
 * special:
 *
 *   ECONNABORTED  the connection is lost (the mount has ended)
 *   EFAULT        a required argument is NULL
 *   EPROTO        the peer does not follow the protocol
 *   ENAMETOOLONG  a path or target has more than 4096 bytes
 *   EINVAL        a length or count is larger than any memory
 *
 * Many threads may use a hither_t and a hither_file_t at a time. Only one thread at a time may use
 * a hither_walk_t or a hither_watch_t. hither_disconnect, hither_close, hither_walk_end and
 * hither_watch_end end a handle for all threads, and ignore NULL. Files, walks and watches may
 * outlive hither_disconnect. The connection ends with the last of them. A child process of fork(2)
 * must connect again. Its calls with the parent's handles fail with ECONNABORTED, and the handles
 * go on working in the parent.
 *
 * The number in the library's name (libhither.so.0) changes when a declaration of this header
 * changes its meaning. Licence: Apache-2.0 OR MIT.
 */
#ifndef HITHER_H
#define HITHER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A connection to a mount. */
typedef struct hither hither_t;
/* An open file. */
typedef struct hither_file hither_file_t;
/* Entries of a directory or tree, as they arrive. */
typedef struct hither_walk hither_walk_t;
/* Changes of paths, as the mount notices them. */
typedef struct hither_watch hither_watch_t;

/* A time: seconds since 1970, nanoseconds. */
struct hither_time {
    int64_t sec;
    uint32_t nsec;
};

/* Attributes of an object. */
struct hither_attr {
    uint32_t mode; /* type and permissions as in st_mode: S_ISDIR(mode), mode & 07777 */
    uint32_t nlink;
    uint32_t uid;
    uint32_t gid;
    uint32_t rdev_major;
    uint32_t rdev_minor;
    uint64_t size;       /* bytes */
    uint64_t used;       /* bytes that the object takes at the server */
    uint64_t fsid_major; /* the file system at the server */
    uint64_t fsid_minor;
    uint64_t fileid; /* number of the object in its file system */
    struct hither_time atime;
    struct hither_time mtime;
    struct hither_time ctime;
    uint64_t change; /* differs whenever data or attributes differ */
};

/* A part of a file to read (hither_readv). The program sets the first four fields, the call the
 * others. */
struct hither_part {
    const char *path;
    uint64_t offset;
    void *data;    /* memory of the program, len bytes */
    size_t len;    /* most bytes to read */
    size_t read;   /* bytes read: fewer than len at the end of the file */
    uint64_t size; /* length of the file */
    int error;     /* 0, or an errno when no byte was read */
};

/* All bytes of a file (hither_read_files). */
struct hither_content {
    void *data; /* freed by hither_free_contents; NULL on an error and for an empty file */
    size_t len;
    int error; /* 0, or an errno */
};

/* Attributes of one of many paths (hither_stat_many). */
struct hither_stated {
    struct hither_attr attr; /* zeros on an error */
    int error;               /* 0, or an errno */
};

/* An entry of a directory or tree (hither_next). */
struct hither_entry {
    const char *path;        /* name, in a tree path below its start; until the next call */
    struct hither_attr attr; /* of the link itself for a symbolic link; zeros on an error */
    int error;               /* 0, or an errno without attributes or for an unreadable directory */
};

/* The present state of a watched path (hither_change). */
struct hither_changed {
    size_t index;            /* index of the path */
    struct hither_attr attr; /* zeros on an error */
    int error;               /* 0, or ENOENT when the object is gone */
};

/* The version of the library: "0.1.0". */
const char *hither_version(void);

/* The last failure of this thread in words: "open a/b: No such file or directory". Never NULL. The
 * string is valid until the next failure. */
const char *hither_error(void);

/* Connects to the mount that contains path, or to path itself when it is a socket. ENOENT when path
 * is in no hither mount or the mount has no socket. EACCES when the socket is not for this user. */
hither_t *hither_connect(const char *path);
void hither_disconnect(hither_t *h);

/* The mount point ("" without one), the export ("server:/path"), and whether the mount is
 * read-only. The strings belong to the connection. */
const char *hither_dir(const hither_t *h);
const char *hither_source(const hither_t *h);
int hither_is_read_only(const hither_t *h);

/* Opens a file with flags of open(2): O_RDONLY, O_WRONLY or O_RDWR, and any of O_CREAT, O_EXCL,
 * O_TRUNC, O_NOFOLLOW, O_CLOEXEC. Other flags fail with EINVAL. mode is the permissions of a new
 * file. */
hither_file_t *hither_open(hither_t *h, const char *path, int flags, unsigned mode);

/* Reads at an offset until len bytes are read or the file ends. A large read sends several requests
 * side by side. Returns the number of bytes read. */
ssize_t hither_pread(hither_file_t *f, void *data, size_t len, uint64_t offset);

/* Writes all len bytes at an offset, or fails. Returns len. EFBIG when the end is not a valid
 * offset. */
ssize_t hither_pwrite(hither_file_t *f, const void *data, size_t len, uint64_t offset);

/* Writes all len bytes at the end of the file, or fails. Returns len. Appends through the same
 * daemon, of at most 1 MiB each, stay in one piece, and no other append overwrites them. Between
 * clients of a server there is no such promise, as with O_APPEND. */
ssize_t hither_append(hither_file_t *f, const void *data, size_t len);

int hither_fsync(hither_file_t *f);
int hither_ftruncate(hither_file_t *f, uint64_t len);
int hither_fstat(hither_file_t *f, struct hither_attr *attr);

/* A descriptor for reading all bytes of the file. Reads from it send no request, and the program
 * closes it. Fails with EOPNOTSUPP unless the mount has cache,ro,consistency=frozen and the whole
 * file is on the local disk. */
int hither_lend(hither_file_t *f);

/* Closes a file. 0: its writes are on stable storage. -1: they are not, and errno has the reason.
 * The handle ends in either case. */
int hither_close(hither_file_t *f);

/* Reads parts of many files. Many small parts need one round trip. 0: each part has its own result.
 * -1: the connection failed. Parts of up to a megabyte are read by path. For a longer part the file
 * is opened, and the part is read again from its beginning. */
int hither_readv(hither_t *h, struct hither_part *parts, size_t count);

/* Reads many whole files. 0: contents[i] has the result of paths[i], and hither_free_contents frees
 * the contents. -1: the connection failed, and no contents have to be freed. */
int hither_read_files(hither_t *h, const char *const *paths, size_t count, struct hither_content *contents);
void hither_free_contents(struct hither_content *contents, size_t count);

/* Creates a file with these bytes, or replaces the bytes of an existing file. The bytes are on
 * stable storage when this returns. */
int hither_write_file(hither_t *h, const char *path, const void *data, size_t len, unsigned mode);

/* Attributes of a path. hither_lstat does not follow a symbolic link at the end of the path. */
int hither_stat(hither_t *h, const char *path, struct hither_attr *attr);
int hither_lstat(hither_t *h, const char *path, struct hither_attr *attr);

/* Attributes of many paths in few round trips. 0: stated[i] belongs to paths[i]. -1: the connection
 * failed. */
int hither_stat_many(hither_t *h, const char *const *paths, size_t count, struct hither_stated *stated);

/* A directory's entries with attributes, without "." and "..", in any order. The whole listing is
 * read before this returns. */
hither_walk_t *hither_list(hither_t *h, const char *path);

/* All objects below a directory with attributes, at most levels deep (UINT32_MAX: all). A directory
 * comes before its entries. hither_next reports a directory that cannot be walked. EAGAIN while 128
 * walks and watches of the connection are held. One of them must end first. */
hither_walk_t *hither_walk(hither_t *h, const char *path, uint32_t levels);

/* The next entry. 1: there is an entry. 0: no entry is left. -1: the walk failed and ends. */
int hither_next(hither_walk_t *walk, struct hither_entry *entry);
void hither_walk_end(hither_walk_t *walk);

/* Reports the state of paths, and each change when the mount notices it (see docs/SOCKET.md).
 * EINVAL for more than 1024 paths, or a megabyte of them. EAGAIN while 128 walks and watches of the
 * connection are held. */
hither_watch_t *hither_watch(hither_t *h, const char *const *paths, size_t count);

/* The next change. 1: there is a change. 0: no change came within timeout_ms (-1: no limit). -1:
 * the watch has ended. EAGAIN: the connection's watches have more than 1024 paths together. Other
 * errors: the connection failed. */
int hither_change(hither_watch_t *watch, int timeout_ms, struct hither_changed *changed);
void hither_watch_end(hither_watch_t *watch);

int hither_mkdir(hither_t *h, const char *path, unsigned mode);
int hither_unlink(hither_t *h, const char *path);
int hither_rmdir(hither_t *h, const char *path);
int hither_rename(hither_t *h, const char *from, const char *to);
int hither_symlink(hither_t *h, const char *target, const char *path);

/* As readlink(2): stores at most len bytes, without a final NUL, and returns their number. */
ssize_t hither_readlink(hither_t *h, const char *path, char *data, size_t len);

#ifdef __cplusplus
}
#endif

#endif
