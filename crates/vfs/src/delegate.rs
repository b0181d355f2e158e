//! The list of the calls that a layer passes on.

/// Passes calls of [`Vfs`](crate::Vfs) on to the layer below, inside the `impl` of a layer:
/// `delegate!(self.below; read, seek)`.
///
/// The trait has no default methods. A call that a layer neither implements nor lists does not
/// compile. The future of the layer below is returned as it is, without another box.
#[macro_export]
macro_rules! delegate {
    ($this:ident.$($field:ident).+; $($op:ident),+ $(,)?) => {
        $crate::delegate!(@each $this, ($($field).+); $($op),+);
    };
    (@each $this:ident, $to:tt; $($op:ident),+) => {
        $($crate::delegate!(@op $op, $this, $to);)+
    };

    (@op peek, $this:ident, ($($to:tt)+)) => {
        fn peek(&$this, cx: &$crate::RequestContext, at: $crate::PathRef<'_>) -> Option<$crate::WalkResult> {
            $this.$($to)+.peek(cx, at)
        }
    };
    (@op subscribe, $this:ident, ($($to:tt)+)) => {
        fn subscribe(&$this, upcalls: ::std::sync::Arc<dyn $crate::Upcalls>) {
            $this.$($to)+.subscribe(upcalls);
        }
    };

    (@op root, $($to:tt)+) => {
        $crate::delegate!(@fn root<>() -> $crate::Result<$crate::Node>, $($to)+);
    };
    (@op walk, $($to:tt)+) => {
        $crate::delegate!(
            @fn walk<'a>(at: $crate::PathRef<'a>, want: $crate::WalkRequest) -> $crate::Result<$crate::WalkResult>,
            $($to)+
        );
    };
    (@op parent, $($to:tt)+) => {
        $crate::delegate!(@fn parent<'a>(dir: &'a $crate::Fh) -> $crate::Result<$crate::Node>, $($to)+);
    };
    (@op getattr, $($to:tt)+) => {
        $crate::delegate!(@fn getattr<'a>(file: $crate::File<'a>) -> $crate::Result<$crate::Attrs>, $($to)+);
    };
    (@op getattr_many, $($to:tt)+) => {
        $crate::delegate!(
            @fn getattr_many<'a>(objects: &'a [$crate::Fh]) -> Vec<$crate::Result<$crate::Attrs>>,
            $($to)+
        );
    };
    (@op revalidate_many, $($to:tt)+) => {
        $crate::delegate!(
            @fn revalidate_many<'a>(objects: &'a [$crate::Fh], want: $crate::Access)
                -> Vec<$crate::Result<($crate::Attrs, $crate::Access)>>,
            $($to)+
        );
    };
    (@op read_many, $($to:tt)+) => {
        $crate::delegate!(
            @fn read_many<'a, 'b>(
                files: &'a [$crate::Fh], holder: Option<&'b $crate::Fh>, max_bytes: u32
            ) -> $crate::ReadManyResult,
            $($to)+
        );
    };
    (@op list_many, $($to:tt)+) => {
        $crate::delegate!(
            @fn list_many<'a>(dirs: &'a [$crate::Fh], max_bytes: u32)
                -> Vec<$crate::Result<($crate::Attrs, $crate::DirPage)>>,
            $($to)+
        );
    };
    (@op setattr, $($to:tt)+) => {
        $crate::delegate!(
            @fn setattr<'a, 'b>(file: $crate::File<'a>, set: &'b $crate::SetAttr)
                -> $crate::Result<$crate::Attrs>,
            $($to)+
        );
    };
    (@op access, $($to:tt)+) => {
        $crate::delegate!(
            @fn access<'a>(fh: &'a $crate::Fh, want: $crate::Access) -> $crate::Result<$crate::Access>,
            $($to)+
        );
    };
    (@op readlink, $($to:tt)+) => {
        $crate::delegate!(@fn readlink<'a>(fh: &'a $crate::Fh) -> $crate::Result<::bytes::Bytes>, $($to)+);
    };
    (@op open, $($to:tt)+) => {
        $crate::delegate!(
            @fn open<'a, 'b>(at: $crate::PathRef<'a>, how: &'b $crate::OpenHow)
                -> $crate::Result<$crate::Opened>,
            $($to)+
        );
    };
    (@op close, $($to:tt)+) => {
        $crate::delegate!(
            @fn close<'a>(fh: &'a $crate::Fh, open: $crate::OpenId) -> $crate::Result<()>,
            $($to)+
        );
    };
    (@op read, $($to:tt)+) => {
        $crate::delegate!(
            @fn read<'a>(file: $crate::File<'a>, offset_bytes: u64, len_bytes: u32)
                -> $crate::Result<$crate::Read>,
            $($to)+
        );
    };
    (@op write, $($to:tt)+) => {
        $crate::delegate!(
            @fn write<'a>(
                file: $crate::File<'a>, offset_bytes: u64, data: $crate::Data, stability: $crate::Stability
            ) -> $crate::Result<$crate::Wrote>,
            $($to)+
        );
    };
    (@op finish, $($to:tt)+) => {
        $crate::delegate!(
            @fn finish<'a, 'b>(
                file: $crate::File<'a>, piece: Option<(u64, $crate::Data)>, set: &'b $crate::SetAttr
            ) -> $crate::Result<$crate::Finished>,
            $($to)+
        );
    };
    (@op commit, $($to:tt)+) => {
        $crate::delegate!(@fn commit<'a>(file: $crate::File<'a>) -> $crate::Result<()>, $($to)+);
    };
    (@op create_whole, $($to:tt)+) => {
        $crate::delegate!(
            @fn create_whole<'a, 'b, 'c>(
                dir: &'a $crate::Fh, name: &'b $crate::Name, set: &'c $crate::SetAttr, data: $crate::Data
            ) -> $crate::Result<$crate::Made>,
            $($to)+
        );
    };
    (@op create_many, $($to:tt)+) => {
        $crate::delegate!(
            @fn create_many<'a, 'b>(dir: &'a $crate::Fh, new: &'b [$crate::Creation])
                -> Vec<$crate::Result<$crate::Made>>,
            $($to)+
        );
    };
    (@op mkdir, $($to:tt)+) => {
        $crate::delegate!(
            @fn mkdir<'a, 'b, 'c>(
                dir: &'a $crate::Fh, name: &'b $crate::Name, set: &'c $crate::SetAttr
            ) -> $crate::Result<$crate::Made>,
            $($to)+
        );
    };
    (@op mknod, $($to:tt)+) => {
        $crate::delegate!(
            @fn mknod<'a, 'b, 'c, 'd>(
                dir: &'a $crate::Fh, name: &'b $crate::Name, what: &'c $crate::Special,
                set: &'d $crate::SetAttr
            ) -> $crate::Result<$crate::Made>,
            $($to)+
        );
    };
    (@op symlink, $($to:tt)+) => {
        $crate::delegate!(
            @fn symlink<'a, 'b, 'c, 'd>(
                dir: &'a $crate::Fh, name: &'b $crate::Name, target: &'c ::bytes::Bytes,
                set: &'d $crate::SetAttr
            ) -> $crate::Result<$crate::Made>,
            $($to)+
        );
    };
    (@op link, $($to:tt)+) => {
        $crate::delegate!(
            @fn link<'a, 'b, 'c>(fh: &'a $crate::Fh, dir: &'b $crate::Fh, name: &'c $crate::Name)
                -> $crate::Result<$crate::Made>,
            $($to)+
        );
    };
    (@op unlink, $($to:tt)+) => {
        $crate::delegate!(
            @fn unlink<'a, 'b, 'c>(
                dir: &'a $crate::Fh, name: &'b $crate::Name, target: Option<&'c $crate::Fh>
            ) -> $crate::Result<$crate::ChangeInfo>,
            $($to)+
        );
    };
    (@op rmdir, $($to:tt)+) => {
        $crate::delegate!(
            @fn rmdir<'a, 'b>(dir: &'a $crate::Fh, name: &'b $crate::Name)
                -> $crate::Result<$crate::ChangeInfo>,
            $($to)+
        );
    };
    (@op remove_many, $($to:tt)+) => {
        $crate::delegate!(
            @fn remove_many<'a, 'b>(dir: &'a $crate::Fh, gone: &'b [$crate::Removal])
                -> Vec<$crate::Result<$crate::ChangeInfo>>,
            $($to)+
        );
    };
    (@op rename, $($to:tt)+) => {
        $crate::delegate!(
            @fn rename<'a, 'b, 'c, 'd, 'e>(
                from: (&'a $crate::Fh, &'b $crate::Name), to: (&'c $crate::Fh, &'d $crate::Name),
                replaced: Option<&'e $crate::Fh>, flags: $crate::RenameFlags
            ) -> $crate::Result<$crate::Moved>,
            $($to)+
        );
    };
    (@op readdir, $($to:tt)+) => {
        $crate::delegate!(
            @fn readdir<'a>(
                dir: &'a $crate::Fh, cookie: u64, verifier: [u8; 8], max_bytes: u32, nodes: bool
            ) -> $crate::Result<$crate::DirPage>,
            $($to)+
        );
    };
    (@op statfs, $($to:tt)+) => {
        $crate::delegate!(@fn statfs<'a>(fh: &'a $crate::Fh) -> $crate::Result<$crate::FsStat>, $($to)+);
    };
    (@op getxattr, $($to:tt)+) => {
        $crate::delegate!(
            @fn getxattr<'a, 'b>(fh: &'a $crate::Fh, name: &'b [u8]) -> $crate::Result<::bytes::Bytes>,
            $($to)+
        );
    };
    (@op setxattr, $($to:tt)+) => {
        $crate::delegate!(
            @fn setxattr<'a, 'b, 'c>(
                fh: &'a $crate::Fh, name: &'b [u8], value: &'c ::bytes::Bytes, mode: $crate::XattrMode
            ) -> $crate::Result<()>,
            $($to)+
        );
    };
    (@op listxattr, $($to:tt)+) => {
        $crate::delegate!(
            @fn listxattr<'a>(fh: &'a $crate::Fh) -> $crate::Result<Vec<::bytes::Bytes>>,
            $($to)+
        );
    };
    (@op removexattr, $($to:tt)+) => {
        $crate::delegate!(
            @fn removexattr<'a, 'b>(fh: &'a $crate::Fh, name: &'b [u8]) -> $crate::Result<()>,
            $($to)+
        );
    };
    (@op lock, $($to:tt)+) => {
        $crate::delegate!(
            @fn lock<'a>(
                file: $crate::File<'a>, owner: $crate::LockOwner, kind: $crate::LockKind,
                range: $crate::FileRange, wait: $crate::LockWait
            ) -> $crate::Result<Option<$crate::Attrs>>,
            $($to)+
        );
    };
    (@op unlock, $($to:tt)+) => {
        $crate::delegate!(
            @fn unlock<'a>(file: $crate::File<'a>, owner: $crate::LockOwner, range: $crate::FileRange)
                -> $crate::Result<()>,
            $($to)+
        );
    };
    (@op test_lock, $($to:tt)+) => {
        $crate::delegate!(
            @fn test_lock<'a>(
                file: $crate::File<'a>, owner: $crate::LockOwner, kind: $crate::LockKind,
                range: $crate::FileRange
            ) -> $crate::Result<Option<$crate::LockConflict>>,
            $($to)+
        );
    };
    (@op seek, $($to:tt)+) => {
        $crate::delegate!(
            @fn seek<'a>(file: $crate::File<'a>, offset_bytes: u64, what: $crate::Seek)
                -> $crate::Result<u64>,
            $($to)+
        );
    };
    (@op allocate, $($to:tt)+) => {
        $crate::delegate!(
            @fn allocate<'a>(file: $crate::File<'a>, range: $crate::FileRange) -> $crate::Result<()>,
            $($to)+
        );
    };
    (@op deallocate, $($to:tt)+) => {
        $crate::delegate!(
            @fn deallocate<'a>(file: $crate::File<'a>, range: $crate::FileRange) -> $crate::Result<()>,
            $($to)+
        );
    };
    (@op copy, $($to:tt)+) => {
        $crate::delegate!(
            @fn copy<'a, 'b>(
                from: $crate::File<'a>, from_offset_bytes: u64, to: $crate::File<'b>,
                to_offset_bytes: u64, len_bytes: u64
            ) -> $crate::Result<u64>,
            $($to)+
        );
    };
    (@op shutdown, $($to:tt)+) => {
        $crate::delegate!(@fn shutdown<>() -> $crate::Result<()>, $($to)+);
    };

    // The signature that `async_trait` generates, with the same order of lifetimes.
    (
        @fn $op:ident<$($life:lifetime),*>($($arg:ident: $ty:ty),*) -> $out:ty,
        $this:ident, ($($to:tt)+)
    ) => {
        fn $op<'this, 'cx, $($life,)* 'call>(
            &'this $this,
            cx: &'cx $crate::RequestContext,
            $($arg: $ty),*
        ) -> ::std::pin::Pin<Box<dyn Future<Output = $out> + Send + 'call>>
        where
            'this: 'call,
            'cx: 'call,
            $($life: 'call,)*
            Self: 'call,
        {
            $this.$($to)+.$op(cx, $($arg),*)
        }
    };
}

#[cfg(test)]
mod tests {
    use crate::model::Model;
    use crate::{
        BatchOps, Create, Cred, Data, Env, File, Name, OpenAccess, OpenHow, PathRef, RequestContext, SetAttr,
        Stability, Vfs,
    };
    use async_trait::async_trait;
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    /// A layer that passes on every call. It does not compile when a call of the trait is missing
    /// in the list.
    struct Nothing {
        below: Arc<dyn Vfs>,
    }

    #[async_trait]
    impl Vfs for Nothing {
        delegate!(self.below;
            root, peek, walk, parent, getattr, setattr, access, readlink, open, close, read, write,
            finish, commit, create_whole, mkdir, mknod, symlink, link, unlink, rmdir, rename, readdir,
            statfs, getxattr, setxattr, listxattr, removexattr, lock, unlock, test_lock, seek,
            allocate, deallocate, copy, subscribe, shutdown,
        );
    }

    #[async_trait]
    impl BatchOps for Nothing {
        delegate!(self.below;
            getattr_many, revalidate_many, read_many, list_many, create_many, remove_many,
        );
    }

    /// A layer that delegates all calls answers like the layer below.
    #[tokio::test]
    async fn calls_reach_the_layer_below() {
        let env = Env { random: Arc::new(|| 4), wall: Arc::new(|| SystemTime::UNIX_EPOCH) };
        let model = Arc::new(Model::new(env, Duration::ZERO, u64::MAX));
        let (over, cx) = (Nothing { below: model.clone() }, RequestContext::new(Arc::new(Cred::root())));
        let root = over.root(&cx).await.unwrap().fh;
        let name = Name::new(&b"f"[..]).unwrap();
        let how =
            OpenHow { create: Create::IfMissing(SetAttr::default()), ..OpenHow::existing(OpenAccess::WRITE) };
        let opened = over.open(&cx, PathRef::name(&root, &name), &how).await.unwrap();
        let file = File { fh: &opened.node.fh, open: Some(opened.open) };
        over.write(&cx, file, 3, Data::from(bytes::Bytes::from_static(b"x")), Stability::Stable)
            .await
            .unwrap();
        assert_eq!(model.getattr(&cx, file).await.unwrap().attr.size_bytes, 4);
    }
}
