//! Scenes about copies in batches, textures, linking, and what no device here has.

use super::*;

type Order = CUmemcpySrcAccessOrder_enum;

fn attributes(order: CUmemcpySrcAccessOrder) -> CUmemcpyAttributes {
    let mut attributes: CUmemcpyAttributes = unsafe { std::mem::zeroed() };
    attributes.srcAccessOrder = order;
    attributes
}

fn bytes_at(at: CUdeviceptr, count: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; count];
    ok!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), at, count));
    bytes
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_batch_of_copies_is_done_in_its_turn_or_not_at_all() {
    context();
    let lane = stream(1);
    let at = allocate(64);
    ok!(cuMemsetD8_v2(at, 9, 64));
    ok!(cuCtxSynchronize());
    let (mut now, mut later, mut back) = ([1u8; 8], [2u8; 8], [0u8; 8]);
    let mut to = [at, at + 8, back.as_mut_ptr() as u64];
    let mut from = [now.as_ptr() as u64, later.as_ptr() as u64, at + 16];
    let mut sizes = [8usize; 3];
    let mut all = [
        attributes(Order::CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL),
        attributes(Order::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM),
    ];
    let mut indices = [0usize, 1];
    let mut failed = 7;
    let mut play = |to: &mut [u64; 3], indices: &mut [usize; 2], failed: *mut usize, lane| unsafe {
        cuMemcpyBatchAsync(
            to.as_mut_ptr(),
            from.as_mut_ptr(),
            sizes.as_mut_ptr(),
            3,
            all.as_mut_ptr(),
            indices.as_mut_ptr(),
            2,
            failed,
            lane,
        )
    };
    // The second goes nowhere: nothing is done, and its number is told.
    let mut wrong = [to[0], at + GIB as u64, to[2]];
    assert_eq!(
        play(&mut wrong, &mut indices, &mut failed, lane),
        Code::CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(failed, 1);
    ok!(cuStreamSynchronize(lane));
    assert_eq!(bytes_at(at, 8), [9; 8]);
    let mut falling = [1usize, 0];
    assert_eq!(
        play(&mut to, &mut falling, &mut failed, lane),
        Code::CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(failed, usize::MAX);
    assert_eq!(
        play(&mut to, &mut indices, null_mut(), null_mut()),
        Code::CUDA_ERROR_INVALID_VALUE
    );
    let gate = Gate::close(lane);
    assert_eq!(
        play(&mut to, &mut indices, &mut failed, lane),
        Code::CUDA_SUCCESS
    );
    assert_eq!(failed, usize::MAX);
    // One source is read by now, the other when the stream gets there.
    (now, later) = ([3; 8], [4; 8]);
    assert_eq!((now[0], later[0]), (3, 4));
    assert_eq!(bytes_at(at, 8), [9; 8]);
    gate.open();
    ok!(cuStreamSynchronize(lane));
    assert_eq!(bytes_at(at, 8), [1; 8]);
    assert_eq!(bytes_at(at + 8, 8), [4; 8]);
    assert_eq!(back, [9; 8]);
    ok!(cuStreamBeginCapture_v2(lane, CUstreamCaptureMode(2)));
    assert_eq!(
        play(&mut to, &mut indices, null_mut(), lane),
        Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    );
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_batch_copies_boxes_between_memory_and_arrays() {
    context();
    let lane = stream(1);
    let mut wanted: CUDA_ARRAY_DESCRIPTOR = unsafe { std::mem::zeroed() };
    (wanted.Width, wanted.Height) = (8, 4);
    wanted.Format = CUarray_format_enum::CU_AD_FORMAT_UNSIGNED_INT16;
    wanted.NumChannels = 1;
    let mut array = null_mut();
    ok!(cuArrayCreate_v2(&mut array, &wanted));
    let source: Vec<u16> = (0..32).collect();
    let mut back = [0u16; 4];
    let mut all: [CUDA_MEMCPY3D_BATCH_OP; 2] = unsafe { std::mem::zeroed() };
    for operation in &mut all {
        operation.srcAccessOrder = Order::CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
        operation.src.type_ = CUmemcpy3DOperandType_enum::CU_MEMCPY_OPERAND_TYPE_POINTER;
        operation.dst.type_ = CUmemcpy3DOperandType_enum::CU_MEMCPY_OPERAND_TYPE_ARRAY;
        operation.dst.op.array.array = array;
    }
    let whole = CUextent3D {
        width: 8,
        height: 4,
        depth: 1,
    };
    all[0].src.op.ptr.ptr = source.as_ptr() as u64;
    all[0].extent = whole;
    // Two texels of two rows back, from the third texel of the second row on.
    (all[1].src, all[1].dst) = (all[1].dst, all[0].src);
    all[1].src.op.array.array = array;
    all[1].src.op.array.offset = CUoffset3D { x: 2, y: 1, z: 0 };
    all[1].dst.op.ptr.ptr = back.as_mut_ptr() as u64;
    all[1].extent = CUextent3D {
        width: 2,
        height: 2,
        depth: 1,
    };
    let mut failed = 7;
    ok!(cuMemcpy3DBatchAsync(
        2,
        all.as_mut_ptr(),
        &mut failed,
        0,
        lane
    ));
    ok!(cuStreamSynchronize(lane));
    assert_eq!(back, [10, 11, 18, 19]);
    all[1].extent.depth = 0;
    fails!(
        cuMemcpy3DBatchAsync(2, all.as_mut_ptr(), &mut failed, 0, lane),
        CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(failed, 1);
    all[1].extent.depth = 1;
    all[1].extent.width = 9;
    fails!(
        cuMemcpy3DWithAttributesAsync(&mut all[1], 0, lane),
        CUDA_ERROR_INVALID_VALUE
    );
    ok!(cuMemcpy3DWithAttributesAsync(&mut all[0], 0, lane));
    ok!(cuStreamSynchronize(lane));
}

#[test]
#[ignore = "a scene that another test plays"]
fn textures_and_surfaces_are_described_and_checked() {
    context();
    let at = allocate(MIB);
    let mut resource: CUDA_RESOURCE_DESC = unsafe { std::mem::zeroed() };
    let mut texture: CUDA_TEXTURE_DESC = unsafe { std::mem::zeroed() };
    resource.resType = CUresourcetype_enum::CU_RESOURCE_TYPE_LINEAR;
    resource.res.linear.devPtr = at;
    resource.res.linear.format = CUarray_format_enum::CU_AD_FORMAT_FLOAT;
    resource.res.linear.numChannels = 4;
    resource.res.linear.sizeInBytes = MIB;
    texture.filterMode = CUfilter_mode_enum(1);
    texture.maxAnisotropy = 4;
    let mut object = 0;
    ok!(cuTexObjectCreate(&mut object, &resource, &texture, null()));
    let mut seen: CUDA_TEXTURE_DESC = unsafe { std::mem::zeroed() };
    ok!(cuTexObjectGetTextureDesc(&mut seen, object));
    assert_eq!((seen.filterMode.0, seen.maxAnisotropy), (1, 4));
    let mut view: CUDA_RESOURCE_VIEW_DESC = unsafe { std::mem::zeroed() };
    fails!(
        cuTexObjectGetResourceViewDesc(&mut view, object),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut other = 7;
    let refused = |resource: &CUDA_RESOURCE_DESC, texture: &CUDA_TEXTURE_DESC, view| {
        let mut other = 7;
        fails!(
            cuTexObjectCreate(&mut other, resource, texture, view),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(other, 7);
    };
    // A view is an array's; memory is aligned, of the right size, and there.
    refused(&resource, &texture, &view);
    for (start, bytes, channels) in [
        (at + 16, 1024, 4),
        (at, MIB + 1, 4),
        (at, 0, 4),
        (at, 1024, 3),
        (at + GIB as u64, 1024, 4),
    ] {
        let mut wrong = resource;
        wrong.res.linear.devPtr = start;
        wrong.res.linear.sizeInBytes = bytes;
        wrong.res.linear.numChannels = channels;
        refused(&wrong, &texture, null());
    }
    let mut wrong = texture;
    wrong.addressMode[2] = CUaddress_mode_enum(4);
    refused(&resource, &wrong, null());
    // Rows of pitched memory.
    let mut rows: CUDA_RESOURCE_DESC = unsafe { std::mem::zeroed() };
    rows.resType = CUresourcetype_enum::CU_RESOURCE_TYPE_PITCH2D;
    rows.res.pitch2D.devPtr = at;
    rows.res.pitch2D.format = CUarray_format_enum::CU_AD_FORMAT_UNSIGNED_INT8;
    rows.res.pitch2D.numChannels = 1;
    (
        rows.res.pitch2D.width,
        rows.res.pitch2D.height,
        rows.res.pitch2D.pitchInBytes,
    ) = (500, 10, 512);
    ok!(cuTexObjectCreate(&mut other, &rows, &texture, null()));
    rows.res.pitch2D.width = 513;
    refused(&rows, &texture, null());
    // Arrays; a surface needs one that was made for it.
    let mut wanted: CUDA_ARRAY3D_DESCRIPTOR = unsafe { std::mem::zeroed() };
    (wanted.Width, wanted.Height) = (64, 64);
    wanted.Format = CUarray_format_enum::CU_AD_FORMAT_FLOAT;
    wanted.NumChannels = 1;
    let (mut plain, mut writable) = (null_mut(), null_mut());
    ok!(cuArray3DCreate_v2(&mut plain, &wanted));
    wanted.Flags = 2;
    ok!(cuArray3DCreate_v2(&mut writable, &wanted));
    let mut of_array: CUDA_RESOURCE_DESC = unsafe { std::mem::zeroed() };
    of_array.res.array.hArray = plain;
    ok!(cuTexObjectCreate(&mut other, &of_array, &texture, &view));
    ok!(cuTexObjectGetResourceViewDesc(&mut view, other));
    let mut surface = 7;
    fails!(
        cuSurfObjectCreate(&mut surface, &of_array),
        CUDA_ERROR_INVALID_VALUE
    );
    fails!(
        cuSurfObjectCreate(&mut surface, &resource),
        CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(surface, 7);
    of_array.res.array.hArray = writable;
    ok!(cuSurfObjectCreate(&mut surface, &of_array));
    let mut again: CUDA_RESOURCE_DESC = unsafe { std::mem::zeroed() };
    ok!(cuSurfObjectGetResourceDesc(&mut again, surface));
    assert_eq!(unsafe { again.res.array.hArray }, writable);
    ok!(cuSurfObjectDestroy(surface));
    fails!(cuSurfObjectDestroy(surface), CUDA_ERROR_INVALID_VALUE);
    ok!(cuTexObjectDestroy(object));
    fails!(
        cuTexObjectGetResourceDesc(&mut again, object),
        CUDA_ERROR_INVALID_VALUE
    );
    // Those of a context end with it.
    let mut own = null_mut();
    ok!(cuCtxCreate_v2(&mut own, 0, 0));
    resource.res.linear.devPtr = allocate(MIB);
    ok!(cuTexObjectCreate(&mut object, &resource, &texture, null()));
    ok!(cuCtxDestroy_v2(own));
    fails!(cuTexObjectDestroy(object), CUDA_ERROR_INVALID_VALUE);
}

#[test]
#[ignore = "a scene that another test plays"]
fn what_is_linked_is_loaded_with_all_its_kernels() {
    context();
    let (first, second) = (
        CString::new(sim::kernels::SPIN_PTX).unwrap(),
        CString::new(sim::kernels::UNTIL_PTX).unwrap(),
    );
    let mut state = null_mut();
    ok!(cuLinkCreate_v2(0, null_mut(), null_mut(), &mut state));
    let ptx = CUjitInputType_enum::CU_JIT_INPUT_PTX;
    let add = |text: &CStr| unsafe {
        let bytes = text.to_bytes_with_nul();
        let (data, size) = (bytes.as_ptr().cast_mut().cast(), bytes.len());
        let none = (null_mut(), null_mut());
        cuLinkAddData_v2(state, ptx, data, size, null(), 0, none.0, none.1)
    };
    assert_eq!(add(&first), Code::CUDA_SUCCESS);
    assert_eq!(add(&second), Code::CUDA_SUCCESS);
    assert_eq!(add(&second), Code::CUDA_ERROR_INVALID_IMAGE);
    assert_eq!(add(c"no code at all"), Code::CUDA_ERROR_INVALID_PTX);
    let (mut image, mut size) = (null_mut(), 0);
    ok!(cuLinkComplete(state, &mut image, &mut size));
    assert!(size > 0);
    let mut module = null_mut();
    ok!(cuModuleLoadData(&mut module, image));
    ok!(cuLinkDestroy(state));
    fails!(cuLinkDestroy(state), CUDA_ERROR_INVALID_HANDLE);
    for (name, parameters) in [(c"spin_ns", 1), (c"spin_until", 2)] {
        let (mut function, mut count) = (null_mut(), 0);
        ok!(cuModuleGetFunction(&mut function, module, name.as_ptr()));
        ok!(cuFuncGetParamCount(function, &mut count));
        assert_eq!(count, parameters);
    }
    let mut function = null_mut();
    ok!(cuModuleGetFunction(
        &mut function,
        module,
        c"spin_ns".as_ptr()
    ));
    let lane = stream(1);
    spin(function, 1000, lane);
    ok!(cuStreamSynchronize(lane));
}

#[test]
#[ignore = "a scene that another test plays"]
fn there_are_no_multicast_objects() {
    context();
    let mut value = 7;
    let attribute = CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED;
    ok!(cuDeviceGetAttribute(&mut value, attribute, 0));
    assert_eq!(value, 0);
    let mut property: CUmulticastObjectProp = unsafe { std::mem::zeroed() };
    let mut handle = 7;
    fails!(
        cuMulticastCreate(&mut handle, &property),
        CUDA_ERROR_INVALID_VALUE
    );
    (property.numDevices, property.size) = (1, 2 * MIB);
    fails!(
        cuMulticastCreate(&mut handle, &property),
        CUDA_ERROR_NOT_SUPPORTED
    );
    assert_eq!(handle, 7);
    fails!(cuMulticastAddDevice(7, 9), CUDA_ERROR_INVALID_DEVICE);
    fails!(cuMulticastAddDevice(7, 0), CUDA_ERROR_NOT_SUPPORTED);
}
