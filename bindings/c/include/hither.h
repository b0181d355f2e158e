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
 * A call that fails returns -1, or NULL, sets errno as the system call of the same name would, and
 * leaves a line of text for people: hither_error(). No signal is sent. These errors are special:
 *
 *   ECONNABORTED  the connection is lost (the mount has ended)
 *   EFAULT        an argument is NULL
 *   EPROTO        the peer does not follow the protocol
 *   ENAMETOOLONG  a path or target has more than 4096 bytes
 *   EINVAL        a length or count is larger than any memory
 *
 * Many threads may use a hither_t and a hither_file_t at a time; one at a time a hither_walk_t and
 * a hither_watch_t. Functions that end a handle (hither_disconnect, hither_close, hither_walk_end,
 * hither_watch_end) take it from all threads, and accept NULL without an effect. Files, walks and
 * watches may outlive hither_disconnect: the connection ends with the last of them. It does not
 * survive fork(2): a child connects anew. With its parent's handles all calls fail with
 * ECONNABORTED in the child, and go on working in the parent.
 *
 * The number in the library's name (libhither.so.0) changes when a declaration here changes its
 * meaning. Licence: Apache-2.0 OR MIT.
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
/* Entries of a directory or tree, as they come. */
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
    uint32_t mode; /* type and permissions as st_mode has them: S_ISDIR(mode), mode & 07777 */
    uint32_t nlink;
    uint32_t uid;
    uint32_t gid;
    uint32_t rdev_major;
    uint32_t rdev_minor;
    uint64_t size;       /* bytes */
    uint64_t used;       /* bytes taken at the server */
    uint64_t fsid_major; /* the server's file system */
    uint64_t fsid_minor;
    uint64_t fileid; /* number of the object in it */
    struct hither_time atime;
    struct hither_time mtime;
    struct hither_time ctime;
    uint64_t change; /* differs whenever data or attributes differ */
};

/* A part of a file to read (hither_readv): the first three and len are given, the others are
 * answers. */
struct hither_part {
    const char *path;
    uint64_t offset;
    void *data;    /* len bytes of the program's */
    size_t len;    /* at most so many are read */
    size_t read;   /* so many were: fewer than len at the end of the file */
    uint64_t size; /* length of the file */
    int error;     /* 0, or an errno: nothing was read then */
};

/* All bytes of a file (hither_read_files). */
struct hither_content {
    void *data; /* the library's: hither_free_contents; NULL on an error and of an empty file */
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
    const char *path;        /* a name; in a tree, the path below its start. Until the next call */
    struct hither_attr attr; /* of a symbolic link itself; zeros on an error */
    int error;               /* 0, or an errno: no attributes, or a directory could not be read */
};

/* The present state of a watched path (hither_change). */
struct hither_changed {
    size_t index;            /* which of the paths */
    struct hither_attr attr; /* zeros on an error */
    int error;               /* 0; ENOENT: it is gone */
};

/* The version of the library: "0.1.0". */
const char *hither_version(void);

/* The last failure of this thread in words, "open a/b: No such file or directory"; never NULL.
 * Until the next failure. */
const char *hither_error(void);

/* Connects to the mount that holds path, or to the socket that path is. ENOENT when no hither mount
 * is there or it has no socket, EACCES when the socket is not for this user. */
hither_t *hither_connect(const char *path);
void hither_disconnect(hither_t *h);

/* The mount point ("" without one); the export, "server:/path"; whether the mount is read-only. The
 * strings belong to the connection. */
const char *hither_dir(const hither_t *h);
const char *hither_source(const hither_t *h);
int hither_is_read_only(const hither_t *h);

/* Opens a file with flags of open(2): O_RDONLY, O_WRONLY or O_RDWR, and any of O_CREAT, O_EXCL,
 * O_TRUNC, O_NOFOLLOW, O_CLOEXEC; others are refused with EINVAL. mode: permissions of a new
 * file. */
hither_file_t *hither_open(hither_t *h, const char *path, int flags, unsigned mode);

/* Reads at an offset until len bytes are there or the file ends; large reads travel as several
 * requests side by side. Returns the number of bytes read. */
ssize_t hither_pread(hither_file_t *f, void *data, size_t len, uint64_t offset);

/* Writes all of len bytes at an offset, or fails; returns len. EFBIG when the end is no valid
 * offset. */
ssize_t hither_pwrite(hither_file_t *f, const void *data, size_t len, uint64_t offset);

/* Writes all of len bytes at the end that the file has then, or fails; returns len. An append
 * through the same daemon, 1 MiB at most at once, stays in one piece, and no other append
 * overwrites it; between clients of a server there is no such promise, as with O_APPEND. */
ssize_t hither_append(hither_file_t *f, const void *data, size_t len);

int hither_fsync(hither_file_t *f);
int hither_ftruncate(hither_file_t *f, uint64_t len);
int hither_fstat(hither_file_t *f, struct hither_attr *attr);

/* A descriptor for reading with all bytes of the file, which the program closes; reads from it need
 * no request. EOPNOTSUPP (-1) unless the mount has cache,ro,consistency=frozen and the file is
 * wholly on the local disk. */
int hither_lend(hither_file_t *f);

/* Closes a file. 0: its writes are on stable storage; -1: they are not, and errno says why. The
 * handle is gone in either case. */
int hither_close(hither_file_t *f);

/* Reads parts of many files, small ones many in a round trip. 0: each part has its own outcome; -1:
 * the connection failed. Parts of up to a megabyte are read by path; for the rest of longer ones
 * the file is opened, and read anew from the part's beginning. */
int hither_readv(hither_t *h, struct hither_part *parts, size_t count);

/* Reads many files whole. 0: contents[i] has the outcome of paths[i], to be given back with
 * hither_free_contents; -1: the connection failed, and there is nothing to give back. */
int hither_read_files(hither_t *h, const char *const *paths, size_t count, struct hither_content *contents);
void hither_free_contents(struct hither_content *contents, size_t count);

/* Makes a file of these bytes, or replaces the bytes of an existing one; on stable storage when it
 * returns. */
int hither_write_file(hither_t *h, const char *path, const void *data, size_t len, unsigned mode);

/* Attributes of a path; hither_lstat does not follow a symbolic link at its end. */
int hither_stat(hither_t *h, const char *path, struct hither_attr *attr);
int hither_lstat(hither_t *h, const char *path, struct hither_attr *attr);

/* Attributes of many paths in few round trips. 0: stated[i] belongs to paths[i]; -1: the connection
 * failed. */
int hither_stat_many(hither_t *h, const char *const *paths, size_t count, struct hither_stated *stated);

/* A directory's entries with attributes, without "." and "..", in any order; the whole listing is
 * read before this returns. */
hither_walk_t *hither_list(hither_t *h, const char *path);

/* All objects below a directory, at most so many levels deep (UINT32_MAX: all), with attributes, a
 * directory before its entries. hither_next reports a directory that cannot be walked. EAGAIN while
 * 128 walks and watches of the connection are held: one has to end first. */
hither_walk_t *hither_walk(hither_t *h, const char *path, uint32_t levels);

/* The next entry. 1: there is one; 0: that was all; -1: it failed, and nothing follows. */
int hither_next(hither_walk_t *walk, struct hither_entry *entry);
void hither_walk_end(hither_walk_t *walk);

/* Reports the state of paths, and each change as the mount notices it (docs/SOCKET.md says when
 * that is). At most 1024 paths, and a megabyte of them (EINVAL); EAGAIN while 128 walks and watches
 * of the connection are held. */
hither_watch_t *hither_watch(hither_t *h, const char *const *paths, size_t count);

/* The next change. 1: there is one; 0: none came within timeout_ms (-1: waits for ever); -1: the
 * watch has ended. EAGAIN: the connection's watches have more than 1024 paths together; other
 * errors: the connection failed. */
int hither_change(hither_watch_t *watch, int timeout_ms, struct hither_changed *changed);
void hither_watch_end(hither_watch_t *watch);

int hither_mkdir(hither_t *h, const char *path, unsigned mode);
int hither_unlink(hither_t *h, const char *path);
int hither_rmdir(hither_t *h, const char *path);
int hither_rename(hither_t *h, const char *from, const char *to);
int hither_symlink(hither_t *h, const char *target, const char *path);

/* As readlink(2): at most len bytes, without a NUL behind them; returns their number. */
ssize_t hither_readlink(hither_t *h, const char *path, char *data, size_t len);

#ifdef __cplusplus
}
#endif

#endif
